#include "server/control/server_ports.h"

#include <utility>

#include "common/base/clock.h"

namespace recon {
namespace {

// Calls `done` on the lane, with how a snapshot has ended.
SnapshotService::Done OnLane(Lane* lane, Snapshots::Done done) {
  return [lane, done = std::move(done)](const absl::StatusOr<SnapshotReply>& reply) {
    lane->Post([done, taken = reply.status()] { done(taken, Now()); });
  };
}

}  // namespace

void ParamServerPort::AwaitInitialValues(WorkerId worker, std::function<void()> ready) {
  params_->AwaitInitialValues(worker, [lane = lane_, ready = std::move(ready)] { lane->Post(ready); });
}

void ParamServerPort::AwaitState(WorkerId worker, uint64_t upload,
                                 std::function<void(uint64_t step, absl::Time now)> staged) {
  const auto on_lane = [lane = lane_, staged = std::move(staged)](uint64_t step) {
    lane->Post([staged, step] { staged(step, Now()); });
  };
  WorkersStateOf(params_)->AwaitState(worker, upload, on_lane);
}

absl::Status ParamServerPort::ChangeRules(const ApplyRules& rules, uint64_t first_step,
                                          absl::Duration* took) {
  const absl::Time begun = Now();
  const absl::Status changed = params_->ChangeRules(rules, first_step);
  *took = Now() - begun;
  return changed;
}

LogUse ParamServerPort::log_use() const {
  return {params_->log()->disk_bytes(), params_->log()->budget_bytes(), params_->log()->full(),
          params_->has_values() && params_->log()->awaits_snapshot()};
}

void SnapshotServicePort::Take(const std::string& reason, Done done) {
  snapshots_->Take(reason, OnLane(lane_, std::move(done)));
}

void SnapshotServicePort::TakeLast(Done done) {
  // The log is trimmed on the snapshots' own thread: the lane does not wait for it.
  snapshots_->Take("final", [params = params_, then = OnLane(lane_, std::move(done))](
                                const absl::StatusOr<SnapshotReply>& reply) mutable {
    if (reply.ok()) params->log()->TrimToNewest();
    then(reply);
  });
}

void SnapshotServicePort::TakeInBackground(const std::string& reason) {
  snapshots_->Take(
      reason, [](const absl::StatusOr<SnapshotReply>&) {}, SnapshotWriter::Pace::kBackground);
}

void SnapshotServicePort::RestoreState(uint64_t upload, Done done) {
  snapshots_->RestoreState(upload, [lane = lane_, done = std::move(done)](const absl::Status& restored) {
    lane->Post([done, restored] { done(restored, Now()); });
  });
}

void ClusterPort::Admit(WorkerId worker, Incarnation incarnation, uint64_t next_step) {
  cluster_->Admit(worker, incarnation, next_step);
}

void ClusterPort::AwaitState(WorkerId worker, uint64_t upload,
                             std::function<void(uint32_t server, uint64_t step, absl::Time now)> staged) {
  const auto on_lane = [lane = lane_, staged = std::move(staged)](uint32_t server, uint64_t step) {
    lane->Post([staged, server, step] { staged(server, step, Now()); });
  };
  cluster_->workers_state()->Await(worker, upload, on_lane);
}

void InitialValuesPort::Load(std::function<void(const absl::Status& loaded)> done) {
  initial_->Load(params_, [lane = lane_, done = std::move(done)](const absl::Status& loaded) {
    lane->Post([done, loaded] { done(loaded); });
  });
}

}  // namespace recon
