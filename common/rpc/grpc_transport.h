#pragma once

#include <cstddef>
#include <memory>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "common/base/mutex.h"
#include "common/rpc/credentials.h"
#include "common/transport/pending_calls.h"
#include "common/transport/send_window.h"
#include "common/transport/transport.h"
#include "grpcpp/channel.h"
#include "grpcpp/generic/generic_stub.h"

namespace recon {

// Frames over streams of the Param service, one a channel, in turn: raw messages of up to about 1 MiB, the
// payloads sent from where they are.
class GrpcTransport final : public Transport {
 public:
  // At least one channel. `window` is shared with the worker's transports to other servers.
  GrpcTransport(const std::vector<std::shared_ptr<grpc::Channel>>& channels,
                std::shared_ptr<SendWindow> window);
  ~GrpcTransport() override;

  uint64_t Call(const ByteChain& request, Done done) override;
  void Abandon(uint64_t call, const absl::Status& why) override;
  void Disconnect() override;

 private:
  class Stream;

  // gRPC's thread: a stream takes no more calls.
  void Forget(uint64_t connection);

  // A channel and its newest stream; others are ending.
  struct Line {
    grpc::TemplatedGenericStub<grpc::ByteBuffer, grpc::ByteBuffer> stub;
    std::shared_ptr<Stream> stream;
  };

  const std::shared_ptr<SendWindow> window_;
  PendingCalls pending_;

  Mutex mu_;
  std::vector<Line> lines_ ABSL_GUARDED_BY(mu_);
  size_t next_line_ ABSL_GUARDED_BY(mu_) = 0;
  uint64_t connections_ ABSL_GUARDED_BY(mu_) = 0;

  Mutex streams_mu_;  // Taken when a stream is destroyed, whatever other lock is held.
  int streams_ ABSL_GUARDED_BY(streams_mu_) = 0;
};

// So many connections to a recon-server; `window` as GrpcTransport's. Errors are ConnectTo()'s.
absl::StatusOr<std::unique_ptr<Transport>> ConnectForFrames(const std::string& address, const TlsFlags& tls,
                                                            int connections,
                                                            std::shared_ptr<SendWindow> window);

}  // namespace recon
