// Of Coordinator: where the state is, in a job whose workers have the optimizer.

#include "common/base/log.h"
#include "server/control/coordinator.h"

namespace recon {

void Coordinator::NoteState(WorkerId worker, const WorkerStateReport& report) {
  if (job_.means()) states_.Report(worker, report);
}

void Coordinator::TellOfState(WorkerId worker, absl::Time now, WorkerStateReply* reply) {
  if (!job_.means() || !parameters_.HasValues() || !parameters_.saved()) return;
  AskForState(now);
  *reply = states_.Answer(worker, ports_.steps->frontier(), work_.data_epoch(), lifecycle_.MayGrant(now),
                          work_.all_given(work_.data_epoch()));
  if (!reply->take()) return;
  LogInfo(
      "worker {} goes on from the state before step {} that the server has: no worker that lives has a newer "
      "one",
      membership_.Find(worker)->name, states_.uploaded());
}

void Coordinator::AskForState(absl::Time now) {
  const std::optional<WorkerId> asked = states_.Ask(ports_.steps->frontier(), now);
  if (!asked) return;
  ports_.params->AwaitState(*asked, [this](uint64_t step, absl::Time came) { OnState(step, came); });
}

void Coordinator::OnState(uint64_t step, absl::Time now) {
  states_.OnUploaded(step, now);
  // What was computed up to it counts as completed when it is saved.
  ports_.snapshots->Take("state", [this, step](const absl::Status& taken, absl::Time) {
    if (taken.ok()) states_.OnSaved(step);
  });
}

}  // namespace recon
