#include "server/control/job_lifecycle.h"

#include "common/base/check.h"

namespace recon {

JobPhase JobLifecycle::phase() const {
  if (finished_) return PHASE_FINISHED;
  if (draining_) return PHASE_DRAINING;
  return started_ ? PHASE_RUNNING : PHASE_WAITING;
}

void JobLifecycle::Start() {
  RECON_CHECK(!started_, "a job starts twice");
  started_ = true;
}

void JobLifecycle::Resume() {
  Start();
  resumed_ = true;
}

void JobLifecycle::NoteServing(absl::Time now) {
  if (resumed_) no_grants_before_ = now + kReturnGrace;
}

bool JobLifecycle::BeginFinish(absl::Time now) {
  if (finishing_ || draining_ || now < finish_retry_at_) return false;
  finishing_ = true;
  return true;
}

void JobLifecycle::EndFinish(bool published, absl::Time now) {
  RECON_CHECK(finishing_ && !finished_, "a job's end comes twice");
  finished_ = published;
  finishing_ = published;
  finished_at_ = now;
  if (!published) finish_retry_at_ = now + kSnapshotRetry;
}

bool JobLifecycle::DoneAndQuiet(absl::Time now, absl::Duration grace, int alive) const {
  if (!finished_ || now - finished_at_ < grace / 3) return false;
  return alive == 0 || now - finished_at_ > grace;
}

}  // namespace recon
