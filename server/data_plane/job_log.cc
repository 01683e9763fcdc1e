#include "server/data_plane/job_log.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/limits.h"
#include "common/base/log.h"
#include "common/base/retry_hint.h"

namespace recon {

absl::Status LogFailed(const absl::Status& status) {
  return absl::UnavailableError(absl::StrCat("the push log has failed: ", status.message()));
}

absl::Status JobLog::CheckRoom() const {
  if (!full()) return absl::OkStatus();
  return WithRetryAfter(absl::ResourceExhaustedError(absl::StrCat(
                            "the push log has ", disk_bytes(), " bytes, its budget is ", budget_bytes(),
                            log_->short_of_room() ? ", and its disk is nearly full" : "",
                            ": pushes wait for a snapshot to make room")),
                        limits::kOverloadRetry);
}

absl::Status JobLog::CheckSnapshot() const {
  if (!on() || has_snapshot()) return absl::OkStatus();
  return absl::UnavailableError("there is no snapshot that a log could go on from, yet");
}

void JobLog::NoteSnapshot(uint64_t first_needed) {
  uint64_t needed;
  {
    MutexLock lock(&mu_);
    has_snapshot_ = true;
    // The snapshot before stays usable, too.
    needed = std::exchange(first_needed_, first_needed);
    bytes_at_snapshot_ = bytes_written();
  }
  // Where room is short it does not.
  Trim(full() ? first_needed : needed);
}

bool JobLog::wants_snapshot() const {
  if (!on()) return false;
  if (full()) return true;
  MutexLock lock(&mu_);
  return bytes_written() - bytes_at_snapshot_ > budget_bytes() / 4;
}

void JobLog::TrimToNewest() {
  uint64_t needed;
  {
    MutexLock lock(&mu_);
    needed = first_needed_;
  }
  Trim(needed);
}

void JobLog::Trim(uint64_t first_needed) {
  if (!on()) return;
  const absl::Status trimmed = log_->Trim(first_needed);
  if (!trimmed.ok()) LogWarn("push log: {}", trimmed.message());
}

}  // namespace recon
