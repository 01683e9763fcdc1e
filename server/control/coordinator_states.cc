// Of Coordinator: where the state is, in a job whose workers have the optimizer.

#include "common/base/log.h"
#include "common/base/status_macros.h"
#include "common/tensor/shard_assignment.h"
#include "server/control/coordinator.h"

namespace recon {

absl::Status Coordinator::NoteState(WorkerId worker, const WorkerStateReport& report) {
  if (!job_.means()) return absl::OkStatus();
  RECON_RETURN_IF_ERROR(states_.Check(report));
  states_.Report(worker, report);
  return absl::OkStatus();
}

void Coordinator::TellOfState(WorkerId worker, absl::Time now, WorkerStateReply* reply) {
  if (!job_.means() || !parameters_.HasValues() || !parameters_.saved() || state_.restored_as) return;
  AskForState(now);
  const bool may_take = lifecycle_.MayGrant(now) && now >= state_.no_takes_before;
  *reply = states_.Answer(worker, ports_.steps->frontier(), work_.data_epoch(), may_take,
                          work_.all_given(work_.data_epoch()));
  if (!reply->take()) return;
  LogInfo(
      "worker {} goes on from the state before step {} that the server has: no worker that lives has a newer "
      "one",
      membership_.Find(worker)->name, states_.uploaded());
}

void Coordinator::AskForState(absl::Time now) {
  // A server that is not there would miss the question.
  if (ports_.others != nullptr && !ports_.others->state().live) return;
  if (now >= state_.retry_at) {
    state_.retry_at = absl::InfiniteFuture();
    if (state_.restored_as) return RestoreState();
    if (state_.unsaved) SaveState(*state_.unsaved);
  }
  if (state_.restored_as) return;
  const std::optional<WorkerId> asked = states_.Ask(ports_.steps->frontier(), now);
  if (!asked) return;
  const uint64_t upload = states_.upload();
  const auto staged = [this, upload](uint32_t server, uint64_t step, absl::Time at) {
    OnStateStaged(server, upload, step, at);
  };
  if (ports_.others != nullptr) ports_.others->AwaitState(*asked, upload, staged);
  ports_.params->AwaitState(*asked, upload,
                            [staged](uint64_t step, absl::Time at) { staged(/*server=*/0, step, at); });
}

std::set<uint32_t> Coordinator::HoldersOfState() const {
  const ParamLayout& layout = *ports_.params->layout();
  const std::vector<uint32_t> server_of_shard =
      AssignShards(layout, ports_.others == nullptr ? 1 : ports_.others->servers());
  std::set<uint32_t> holders;
  for (uint32_t i = 0; i < server_of_shard.size(); ++i) {
    if (HoldsState(layout, i)) holders.insert(server_of_shard[i]);
  }
  return holders;
}

void Coordinator::OnStateStaged(uint32_t server, uint64_t upload, uint64_t step, absl::Time now) {
  if (state_.restored_as || (ports_.others != nullptr && !ports_.others->state().live)) return;
  const std::optional<uint64_t> whole = states_.OnStaged(server, upload, step, HoldersOfState());
  if (!whole) return;
  if (const absl::Status committed = ports_.params->CommitState(upload); !committed.ok()) {
    return LogError("the workers' state before step {}: {}", *whole, committed.message());
  }
  states_.OnUploaded(*whole, now);
  SaveState(*whole);
}

void Coordinator::SaveState(uint64_t step) {
  state_.unsaved = step;
  ports_.snapshots->Take("state", [this, step](const absl::Status& taken, absl::Time now) {
    if (taken.ok()) states_.OnSaved(step);
    if (state_.unsaved != step) return;
    if (taken.ok()) {
      state_.unsaved.reset();
    } else {
      state_.retry_at = now + JobLifecycle::kSnapshotRetry;
    }
  });
}

void Coordinator::AgreeOnState(const ServersState& others, absl::Time now) {
  states_.BeginEpoch(cluster_epoch_);
  if (lifecycle_.started()) state_.no_takes_before = now + StateUnderWay::kReturnGrace;
  if (!parameters_.HasValues() || !parameters_.saved()) return;
  for (const PlaceState& place : others.places) {
    if (place.state_version == ports_.params->state_version()) continue;
    // What was uploaded since is not saved, and nothing that is completed hangs on it; who lives has it.
    LogInfo("server {} has another state of the workers than the head: all go back to the saved one",
            place.server);
    return RestoreState();
  }
}

void Coordinator::RestoreState() {
  const uint64_t upload = states_.NewUpload();
  state_.restored_as = upload;
  state_.unsaved.reset();
  states_.OnRestored();
  ports_.snapshots->RestoreState(upload, [this, upload](const absl::Status& restored, absl::Time now) {
    if (state_.restored_as != upload) return;
    if (restored.ok()) {
      state_.restored_as.reset();
      return;
    }
    LogError("the saved state of the workers cannot be restored yet: {}", restored.message());
    state_.retry_at = now + JobLifecycle::kSnapshotRetry;
  });
}

}  // namespace recon
