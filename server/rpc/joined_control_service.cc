#include "server/rpc/joined_control_service.h"

#include "absl/strings/str_cat.h"
#include "common/rpc/open_call.h"
#include "common/rpc/sender.h"

namespace recon {

using Reactor = JoinedControlService::Reactor;

Reactor* JoinedControlService::PointToHead(Context* context) const {
  Reactor* reactor = new CountedReactor(connections_->Find(PeerOf(*context)));
  reactor->Finish(grpc::Status(
      grpc::StatusCode::FAILED_PRECONDITION,
      absl::StrCat(
          "this server has joined the job of another, its head, and does not speak for it: ask --server ",
          head_)));
  return reactor;
}

Reactor* JoinedControlService::Register(Context* context, const RegisterRequest*, RegisterReply*) {
  return PointToHead(context);
}
Reactor* JoinedControlService::Status(Context* context, const StatusRequest*, StatusReply*) {
  return PointToHead(context);
}
Reactor* JoinedControlService::History(Context* context, const HistoryRequest*, HistoryReply*) {
  return PointToHead(context);
}
Reactor* JoinedControlService::Completions(Context* context, const CompletionsRequest*, CompletionsReply*) {
  return PointToHead(context);
}
Reactor* JoinedControlService::Snapshot(Context* context, const SnapshotRequest*, SnapshotReply*) {
  return PointToHead(context);
}
Reactor* JoinedControlService::SetPolicy(Context* context, const SetPolicyRequest*, SetPolicyReply*) {
  return PointToHead(context);
}
Reactor* JoinedControlService::Rollback(Context* context, const RollbackRequest*, RollbackReply*) {
  return PointToHead(context);
}
Reactor* JoinedControlService::Drain(Context* context, const DrainRequest*, DrainReply*) {
  return PointToHead(context);
}

}  // namespace recon
