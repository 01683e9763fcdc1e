#include "server/rpc/control_service.h"

#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/strip.h"
#include "common/base/clock.h"
#include "common/base/limits.h"
#include "common/base/log.h"
#include "common/rpc/status_codes.h"

namespace recon {
namespace {

// Runs `call` on the lane and finishes the request with what it returns. gRPC keeps request and reply
// until Finish().
template <typename Reply, typename Call>
grpc::ServerUnaryReactor* OnLane(Lane* lane, grpc::CallbackServerContext* context, Reply* reply, Call call) {
  grpc::ServerUnaryReactor* reactor = context->DefaultReactor();
  lane->Post([reactor, reply, call = std::move(call)] {
    absl::StatusOr<Reply> result = call();
    const absl::Status status = result.status();
    if (status.ok()) *reply = *std::move(result);
    reactor->Finish(ToGrpc(status));
  });
  return reactor;
}

// As gRPC says it, "ipv4:10.0.0.2:4711" or "ipv6:%5B::1%5D:4711", in the form that flags have.
std::string PeerName(absl::string_view peer) {
  if (!absl::ConsumePrefix(&peer, "ipv4:")) absl::ConsumePrefix(&peer, "ipv6:");
  return absl::StrReplaceAll(peer, {{"%5B", "["}, {"%5D", "]"}});
}

}  // namespace

ControlService::Reactor* ControlService::Register(Context* context, const RegisterRequest* request,
                                                  RegisterReply* reply) {
  return OnLane(coordinator_->lane(), context, reply, [this, request, peer = PeerName(context->peer())]() {
    absl::StatusOr<RegisterReply> result = coordinator_->Register(*request, Now(), peer);
    if (!result.ok() && !absl::IsUnavailable(result.status()))
      LogWarn("worker {} refused: {}", request->name(), result.status().message());
    return result;
  });
}

ControlService::Reactor* ControlService::Heartbeat(Context* context, const HeartbeatRequest* request,
                                                   HeartbeatReply* reply) {
  return OnLane(coordinator_->lane(), context, reply,
                [this, request] { return coordinator_->Heartbeat(*request, Now()); });
}

ControlService::Reactor* ControlService::Acquire(Context* context, const AcquireRequest* request,
                                                 AcquireReply* reply) {
  return OnLane(coordinator_->lane(), context, reply,
                [this, request] { return coordinator_->Acquire(*request, Now()); });
}

ControlService::Reactor* ControlService::Complete(Context* context, const CompleteRequest* request,
                                                  CompleteReply* reply) {
  return OnLane(coordinator_->lane(), context, reply,
                [this, request] { return coordinator_->Complete(*request, Now()); });
}

ControlService::Reactor* ControlService::Rejoin(Context* context, const RejoinRequest* request,
                                                RejoinReply* reply) {
  return OnLane(coordinator_->lane(), context, reply,
                [this, request] { return coordinator_->Rejoin(*request, Now()); });
}

ControlService::Reactor* ControlService::Leave(Context* context, const LeaveRequest* request,
                                               LeaveReply* reply) {
  return OnLane(coordinator_->lane(), context, reply,
                [this, request] { return coordinator_->Leave(*request); });
}

ControlService::Reactor* ControlService::Status(Context* context, const StatusRequest*, StatusReply* reply) {
  return OnLane(coordinator_->lane(), context, reply, [this] { return coordinator_->Status(Now()); });
}

ControlService::Reactor* ControlService::History(Context* context, const HistoryRequest* request,
                                                 HistoryReply* reply) {
  Reactor* reactor = context->DefaultReactor();
  history_(*request, [reactor, reply](HistoryReply history) {
    *reply = std::move(history);
    reactor->Finish(grpc::Status::OK);
  });
  return reactor;
}

ControlService::Reactor* ControlService::Completions(Context* context, const CompletionsRequest*,
                                                     CompletionsReply* reply) {
  return OnLane(coordinator_->lane(), context, reply, [this] { return coordinator_->Completions(); });
}

ControlService::Reactor* ControlService::Snapshot(Context* context, const SnapshotRequest*,
                                                  SnapshotReply* reply) {
  Reactor* reactor = context->DefaultReactor();
  snapshots_->Take("requested", [reactor, reply](const absl::StatusOr<SnapshotReply>& result) {
    if (result.ok()) *reply = *result;
    reactor->Finish(ToGrpc(result.status()));
  });
  return reactor;
}

ControlService::Reactor* ControlService::SetPolicy(Context* context, const SetPolicyRequest* request,
                                                   SetPolicyReply* reply) {
  return OnLane(coordinator_->lane(), context, reply,
                [this, request] { return coordinator_->SetPolicy(*request); });
}

ControlService::Reactor* ControlService::Rollback(Context* context, const RollbackRequest* request,
                                                  RollbackReply* reply) {
  Reactor* reactor = context->DefaultReactor();
  if (!request->dry_run()) LogInfo("{} asks for a rollback", PeerName(context->peer()));
  rollback_(*request, [reactor, reply](const absl::StatusOr<RollbackReply>& result) {
    if (result.ok()) *reply = *result;
    reactor->Finish(ToGrpc(result.status()));
  });
  return reactor;
}

ControlService::Reactor* ControlService::Drain(Context* context, const DrainRequest*, DrainReply* reply) {
  const WaitingDrain waiting = {context->DefaultReactor(), reply};
  absl::StatusOr<DrainReply> outcome = absl::ResourceExhaustedError(
      absl::StrCat(limits::kDrainsWaitingMax, " clients wait for the end of this drain already"));
  {
    MutexLock lock(&mu_);
    drain_requested_->store(true);
    if (drained_) {
      outcome = *drained_;
    } else if (drains_.size() < limits::kDrainsWaitingMax) {
      drains_.push_back(waiting);
      return waiting.reactor;
    }
  }
  Finish(waiting, outcome);
  return waiting.reactor;
}

void ControlService::FinishDrains(const absl::StatusOr<DrainReply>& outcome) {
  std::vector<WaitingDrain> drains;
  {
    MutexLock lock(&mu_);
    if (!drained_) drained_ = outcome;
    drains.swap(drains_);
  }
  for (const WaitingDrain& waiting : drains) Finish(waiting, outcome);
}

void ControlService::Finish(const WaitingDrain& waiting, const absl::StatusOr<DrainReply>& outcome) {
  if (outcome.ok()) *waiting.reply = *outcome;
  waiting.reactor->Finish(ToGrpc(outcome.status()));
}

}  // namespace recon
