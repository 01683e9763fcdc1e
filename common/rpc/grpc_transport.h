#pragma once

#include <memory>

#include "absl/base/thread_annotations.h"
#include "common/base/mutex.h"
#include "common/transport/pending_calls.h"
#include "common/transport/transport.h"
#include "grpcpp/channel.h"
#include "grpcpp/generic/generic_stub.h"

namespace recon {

// Frames over one stream of the Param service: raw messages of about 1 MiB, one write under way at a time,
// the payloads sent from where they are.
class GrpcTransport final : public Transport {
 public:
  explicit GrpcTransport(const std::shared_ptr<grpc::Channel>& channel) : stub_(channel) {}
  ~GrpcTransport() override;

  uint64_t Call(const ByteChain& request, Done done) override;
  void Abandon(uint64_t call, const absl::Status& why) override;
  absl::string_view name() const override { return "grpc"; }

 private:
  class Stream;

  // A stream has ended for good. gRPC's thread.
  void Ended(uint64_t connection, const absl::Status& why);

  grpc::TemplatedGenericStub<grpc::ByteBuffer, grpc::ByteBuffer> stub_;
  PendingCalls pending_;

  Mutex mu_;
  // The newest; others are ending.
  std::shared_ptr<Stream> stream_ ABSL_GUARDED_BY(mu_);
  uint64_t connections_ ABSL_GUARDED_BY(mu_) = 0;
  int open_streams_ ABSL_GUARDED_BY(mu_) = 0;
  bool closing_ ABSL_GUARDED_BY(mu_) = false;
};

}  // namespace recon
