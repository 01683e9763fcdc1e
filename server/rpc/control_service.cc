#include "server/rpc/control_service.h"

#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/strip.h"
#include "common/base/clock.h"
#include "common/base/limits.h"
#include "common/base/log.h"
#include "common/base/status_macros.h"
#include "common/rpc/open_call.h"
#include "common/rpc/sender.h"
#include "common/rpc/status_codes.h"

namespace recon {
namespace {

// Of a call that counts until its reply has been sent.
ControlService::Reactor* NewReactor(const Access& access, const grpc::CallbackServerContext& context) {
  return new CountedReactor(access.ConnectionOf(PeerOf(context)));
}

// Runs `call` on the lane and finishes the request with what it returns. gRPC keeps request and reply
// until Finish().
template <typename Reply, typename Call>
ControlService::Reactor* OnLane(Lane* lane, ControlService::Reactor* reactor, Reply* reply, Call call) {
  lane->Post([reactor, reply, call = std::move(call)] {
    absl::StatusOr<Reply> result = call();
    const absl::Status status = result.status();
    if (status.ok()) *reply = *std::move(result);
    reactor->Finish(ToGrpc(status));
  });
  return reactor;
}

// Whether the call shows the secret of the process that it names: anybody can read the names in the status.
absl::Status CheckSender(const grpc::CallbackServerContext& context, uint64_t incarnation) {
  RECON_ASSIGN_OR_RETURN(const Incarnation sender, SenderOf(context));
  if (sender == Incarnation(incarnation) && incarnation != 0) return absl::OkStatus();
  return absl::PermissionDeniedError(absl::StrCat("a worker's call for incarnation ", incarnation, " from ",
                                                  PeerOf(context),
                                                  ": it does not show that process' secret"));
}

ControlService::Reactor* Refuse(ControlService::Reactor* reactor, const absl::Status& status) {
  reactor->Finish(ToGrpc(status));
  return reactor;
}

}  // namespace

// As OnLane(), for a call of the worker's process `incarnation`.
template <typename Reply, typename Call>
ControlService::Reactor* ControlService::OfWorker(Context* context, const char* name, uint64_t incarnation,
                                                  Reply* reply, Call call) {
  absl::Status status = access_->Check(context, Role::kWorker, name);
  status.Update(CheckSender(*context, incarnation));
  if (!status.ok()) return Refuse(NewReactor(*access_, *context), status);
  return OnLane(coordinator_->lane(), NewReactor(*access_, *context), reply,
                [this, context, call = std::move(call)] {
                  absl::StatusOr<Reply> result = call();
                  if (result.ok()) access_->NoteMember(*context);
                  return result;
                });
}

// As OnLane(), for a call of those who only look.
template <typename Reply, typename Call>
ControlService::Reactor* ControlService::OfObserver(Context* context, const char* name, Reply* reply,
                                                    Call call) {
  const absl::Status status = access_->Check(context, Role::kObserver, name);
  if (!status.ok()) return Refuse(NewReactor(*access_, *context), status);
  return OnLane(coordinator_->lane(), NewReactor(*access_, *context), reply, std::move(call));
}

ControlService::Reactor* ControlService::Register(Context* context, const RegisterRequest* request,
                                                  RegisterReply* reply) {
  if (const absl::Status named = access_->CheckName(*context, request->name()); !named.ok()) {
    return Refuse(NewReactor(*access_, *context), named);
  }
  return OfWorker(context, "Register", request->incarnation(), reply,
                  [this, context, request]() -> absl::StatusOr<RegisterReply> {
                    absl::StatusOr<RegisterReply> result =
                        coordinator_->Register(*request, Now(), PeerOf(*context));
                    // Who is to wait asks again and again.
                    if (absl::IsUnavailable(result.status()) || absl::IsAborted(result.status()))
                      return result;
                    access_->Note(*context, "Register", request->name(), result.status());
                    if (!result.ok())
                      LogWarn("worker {} refused: {}", request->name(), result.status().message());
                    return result;
                  });
}

ControlService::Reactor* ControlService::Heartbeat(Context* context, const HeartbeatRequest* request,
                                                   HeartbeatReply* reply) {
  return OfWorker(context, "Heartbeat", request->identity().incarnation(), reply, [this, request] {
    absl::StatusOr<HeartbeatReply> result = coordinator_->Heartbeat(*request, {Now(), WallNow()});
    if (result.ok()) traces_->Tell(&*result);
    return result;
  });
}

ControlService::Reactor* ControlService::Acquire(Context* context, const AcquireRequest* request,
                                                 AcquireReply* reply) {
  return OfWorker(context, "Acquire", request->identity().incarnation(), reply,
                  [this, request] { return coordinator_->Acquire(*request, Now()); });
}

ControlService::Reactor* ControlService::Complete(Context* context, const CompleteRequest* request,
                                                  CompleteReply* reply) {
  return OfWorker(context, "Complete", request->identity().incarnation(), reply, [this, request] {
    return coordinator_->Complete(*request, {Now(), WallNow()});
  });
}

ControlService::Reactor* ControlService::Rejoin(Context* context, const RejoinRequest* request,
                                                RejoinReply* reply) {
  return OfWorker(context, "Rejoin", request->identity().incarnation(), reply,
                  [this, request] { return coordinator_->Rejoin(*request, Now()); });
}

ControlService::Reactor* ControlService::Leave(Context* context, const LeaveRequest* request,
                                               LeaveReply* reply) {
  return OfWorker(context, "Leave", request->identity().incarnation(), reply, [this, request] {
    return coordinator_->Leave(*request, {Now(), WallNow()});
  });
}

ControlService::Reactor* ControlService::Status(Context* context, const StatusRequest*, StatusReply* reply) {
  return OfObserver(context, "Status", reply, [this] { return coordinator_->Status(Now()); });
}

ControlService::Reactor* ControlService::History(Context* context, const HistoryRequest* request,
                                                 HistoryReply* reply) {
  const absl::Status allowed = access_->Check(context, Role::kObserver, "History");
  if (!allowed.ok()) return Refuse(NewReactor(*access_, *context), allowed);
  Reactor* reactor = NewReactor(*access_, *context);
  history_(*request, [reactor, reply](absl::StatusOr<HistoryReply> history) {
    const absl::Status status = history.status();
    if (status.ok()) *reply = *std::move(history);
    reactor->Finish(ToGrpc(status));
  });
  return reactor;
}

ControlService::Reactor* ControlService::Completions(Context* context, const CompletionsRequest*,
                                                     CompletionsReply* reply) {
  return OfObserver(context, "Completions", reply, [this] { return coordinator_->Completions(); });
}

ControlService::Reactor* ControlService::Snapshot(Context* context, const SnapshotRequest*,
                                                  SnapshotReply* reply) {
  const absl::Status allowed = access_->Check(context, Role::kOperator, "Snapshot");
  if (!allowed.ok()) return Refuse(NewReactor(*access_, *context), allowed);
  Reactor* reactor = NewReactor(*access_, *context);
  snapshots_->Take("requested", [this, context, reactor, reply](const absl::StatusOr<SnapshotReply>& result) {
    access_->Note(*context, "Snapshot", "", result.status());
    if (result.ok()) *reply = *result;
    reactor->Finish(ToGrpc(result.status()));
  });
  return reactor;
}

ControlService::Reactor* ControlService::SetPolicy(Context* context, const SetPolicyRequest* request,
                                                   SetPolicyReply* reply) {
  const absl::Status allowed = access_->Check(context, Role::kOperator, "SetPolicy");
  if (!allowed.ok()) return Refuse(NewReactor(*access_, *context), allowed);
  return OnLane(coordinator_->lane(), NewReactor(*access_, *context), reply, [this, context, request] {
    absl::StatusOr<SetPolicyReply> result = coordinator_->SetPolicy(*request, Now());
    access_->Note(*context, "SetPolicy", PolicyFlags(request->policy()), result.status());
    return result;
  });
}

ControlService::Reactor* ControlService::Rollback(Context* context, const RollbackRequest* request,
                                                  RollbackReply* reply) {
  const absl::Status allowed = access_->Check(context, Role::kOperator, "Rollback");
  if (!allowed.ok()) return Refuse(NewReactor(*access_, *context), allowed);
  Reactor* reactor = NewReactor(*access_, *context);
  if (!request->dry_run()) LogInfo("{} asks for a rollback", PeerOf(*context));
  rollback_(*request, [this, context, request, reactor, reply](const absl::StatusOr<RollbackReply>& result) {
    if (!request->dry_run())
      access_->Note(*context, "Rollback", request->ShortDebugString(), result.status());
    if (result.ok()) *reply = *result;
    reactor->Finish(ToGrpc(result.status()));
  });
  return reactor;
}

ControlService::Reactor* ControlService::Drain(Context* context, const DrainRequest*, DrainReply* reply) {
  const absl::Status allowed = access_->Check(context, Role::kOperator, "Drain");
  if (!allowed.ok()) return Refuse(NewReactor(*access_, *context), allowed);
  access_->Note(*context, "Drain", "", absl::OkStatus());
  const WaitingDrain waiting = {NewReactor(*access_, *context), reply};
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
