#pragma once

#include <string>

#include "common/rpc/connections.h"
#include "proto/control.grpc.pb.h"

namespace recon {

// What a server that has joined a head answers to those who take it for the head: FailedPrecondition, with
// the head's address. Thread-safe.
class JoinedControlService : public Control::CallbackService {
 public:
  // `connections`, which must outlive it, count its calls.
  JoinedControlService(const std::string& head, const Connections* connections)
      : head_(head), connections_(connections) {}

  using Reactor = grpc::ServerUnaryReactor;
  using Context = grpc::CallbackServerContext;

  Reactor* Register(Context* context, const RegisterRequest*, RegisterReply*) override;
  Reactor* History(Context* context, const HistoryRequest*, HistoryReply*) override;
  Reactor* Status(Context* context, const StatusRequest*, StatusReply*) override;
  Reactor* Completions(Context* context, const CompletionsRequest*, CompletionsReply*) override;
  Reactor* Snapshot(Context* context, const SnapshotRequest*, SnapshotReply*) override;
  Reactor* SetPolicy(Context* context, const SetPolicyRequest*, SetPolicyReply*) override;
  Reactor* Rollback(Context* context, const RollbackRequest*, RollbackReply*) override;
  Reactor* Drain(Context* context, const DrainRequest*, DrainReply*) override;

 private:
  Reactor* PointToHead(Context* context) const;

  const std::string head_;
  const Connections* const connections_;
};

}  // namespace recon
