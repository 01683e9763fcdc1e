#pragma once

#include <memory>
#include <set>

#include "absl/base/thread_annotations.h"
#include "common/base/mutex.h"
#include "common/transport/transport.h"
#include "proto/param.grpc.pb.h"

namespace recon {

class ExchangeStream;

// Param over gRPC's callback API with raw buffers: a stream a worker, whose requests go to `handler`.
//
// Threads: thread-safe. Shutdown: Close(), then shut the RPC server down, then destroy.
class ParamService : public Param::WithRawCallbackMethod_Exchange<Param::Service> {
 public:
  explicit ParamService(RequestHandler handler) : handler_(std::move(handler)) {}

  grpc::ServerBidiReactor<grpc::ByteBuffer, grpc::ByteBuffer>* Exchange(
      grpc::CallbackServerContext* context) override;

  // Ends all streams, when what they are writing is written, and refuses new ones: Unavailable.
  void Close();

 private:
  friend class ExchangeStream;
  void Forget(ExchangeStream* stream);

  const RequestHandler handler_;

  Mutex mu_;
  std::set<ExchangeStream*> streams_ ABSL_GUARDED_BY(mu_);
  bool closed_ ABSL_GUARDED_BY(mu_) = false;
};

}  // namespace recon
