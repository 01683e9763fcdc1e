#pragma once

#include <atomic>
#include <functional>
#include <optional>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/statusor.h"
#include "common/base/mutex.h"
#include "proto/control.grpc.pb.h"
#include "server/control/lane_coordinator.h"
#include "server/recovery/snapshot_service.h"
#include "server/rpc/access.h"
#include "server/rpc/trace_service.h"

namespace recon {

// Control over gRPC's callback API: every request whose caller has the role for it runs on the coordinator's
// lane. The pointers must
// outlive the service.
class ControlService : public Control::CallbackService {
 public:
  // `done` may run on any thread.
  using RollbackDone = std::function<void(const absl::StatusOr<RollbackReply>&)>;
  using RollbackHandler = std::function<void(const RollbackRequest&, const RollbackDone& done)>;

  using HistoryDone = std::function<void(absl::StatusOr<HistoryReply>)>;
  using HistoryHandler = std::function<void(const HistoryRequest&, HistoryDone done)>;

  ControlService(Access* access, LaneCoordinator* coordinator, SnapshotService* snapshots,
                 std::atomic<bool>* drain_requested, RollbackHandler rollback, HistoryHandler history,
                 const TraceService* traces)
      : access_(access),
        coordinator_(coordinator),
        snapshots_(snapshots),
        drain_requested_(drain_requested),
        rollback_(std::move(rollback)),
        history_(std::move(history)),
        traces_(traces) {}

  using Reactor = grpc::ServerUnaryReactor;
  using Context = grpc::CallbackServerContext;

  Reactor* Register(Context* context, const RegisterRequest* request, RegisterReply* reply) override;
  Reactor* Heartbeat(Context* context, const HeartbeatRequest* request, HeartbeatReply* reply) override;
  Reactor* Acquire(Context* context, const AcquireRequest* request, AcquireReply* reply) override;
  Reactor* Complete(Context* context, const CompleteRequest* request, CompleteReply* reply) override;
  Reactor* Rejoin(Context* context, const RejoinRequest* request, RejoinReply* reply) override;
  Reactor* Leave(Context* context, const LeaveRequest* request, LeaveReply* reply) override;
  Reactor* Status(Context* context, const StatusRequest* request, StatusReply* reply) override;
  Reactor* History(Context* context, const HistoryRequest* request, HistoryReply* reply) override;
  Reactor* Completions(Context* context, const CompletionsRequest* request, CompletionsReply* reply) override;
  Reactor* Snapshot(Context* context, const SnapshotRequest* request, SnapshotReply* reply) override;
  Reactor* SetPolicy(Context* context, const SetPolicyRequest* request, SetPolicyReply* reply) override;
  Reactor* Rollback(Context* context, const RollbackRequest* request, RollbackReply* reply) override;
  // Answered by FinishDrains().
  Reactor* Drain(Context* context, const DrainRequest* request, DrainReply* reply) override;

  // What has come of the drain, for those who wait and those who ask later. Any thread. Once at least before
  // the RPC server ends; what was said first stays.
  void FinishDrains(const absl::StatusOr<DrainReply>& outcome);

 private:
  struct WaitingDrain {
    Reactor* reactor;
    DrainReply* reply;
  };
  static void Finish(const WaitingDrain& waiting, const absl::StatusOr<DrainReply>& outcome);

  template <typename Reply, typename Call>
  Reactor* OfWorker(Context* context, const char* name, uint64_t incarnation, Reply* reply, Call call);
  template <typename Reply, typename Call>
  Reactor* OfObserver(Context* context, const char* name, Reply* reply, Call call);

  Access* access_;
  LaneCoordinator* coordinator_;
  SnapshotService* snapshots_;
  std::atomic<bool>* drain_requested_;
  const RollbackHandler rollback_;
  const HistoryHandler history_;
  const TraceService* const traces_;

  Mutex mu_;
  std::vector<WaitingDrain> drains_ ABSL_GUARDED_BY(mu_);
  std::optional<absl::StatusOr<DrainReply>> drained_ ABSL_GUARDED_BY(mu_);
};

}  // namespace recon
