#pragma once

#include <functional>
#include <memory>
#include <set>

#include "absl/base/thread_annotations.h"
#include "common/base/mutex.h"
#include "common/rpc/connections.h"
#include "common/transport/connected_processes.h"
#include "common/transport/transport.h"
#include "proto/param.grpc.pb.h"

namespace recon {

class ExchangeStream;

// Param over gRPC's callback API with raw buffers: a stream a worker, whose requests go to `handler`.
//
// Threads: thread-safe. Shutdown: Close(), then shut the RPC server down, then destroy.
class ParamService : public Param::WithRawCallbackMethod_Exchange<Param::Service> {
 public:
  // Who is a member of the job, by what a stream has shown. Any thread.
  using IsMember = std::function<bool(Incarnation sender)>;
  // Whether a stream may be opened by who calls so; a bad status is the answer. Any thread.
  using Admit = std::function<absl::Status(const grpc::CallbackServerContext&)>;

  // Each of those may be null: `connected` is told of streams, `connections` which of them are members' or
  // were understood. They outlive the service.
  explicit ParamService(RequestHandler handler, ConnectedProcesses* connected = nullptr,
                        const Connections* connections = nullptr, IsMember is_member = nullptr,
                        Admit admit = nullptr)
      : handler_(std::move(handler)),
        connected_(connected),
        connections_(connections),
        is_member_(std::move(is_member)),
        admit_(std::move(admit)) {}

  grpc::ServerBidiReactor<grpc::ByteBuffer, grpc::ByteBuffer>* Exchange(
      grpc::CallbackServerContext* context) override;

  // Ends all streams, when what they are writing is written, and refuses new ones: Unavailable.
  void Close();

 private:
  friend class ExchangeStream;
  void Forget(ExchangeStream* stream);

  const RequestHandler handler_;
  ConnectedProcesses* const connected_;
  const Connections* const connections_;
  const IsMember is_member_;
  const Admit admit_;

  Mutex mu_;
  std::set<ExchangeStream*> streams_ ABSL_GUARDED_BY(mu_);
  bool closed_ ABSL_GUARDED_BY(mu_) = false;
};

}  // namespace recon
