#include "server/data_plane/state_upload.h"

#include "absl/strings/str_cat.h"

namespace recon {

void StateUpload::AskOf(WorkerId worker) {
  sender_ = worker;
  missing_.clear();
}

absl::Status StateUpload::Check(WorkerId worker, absl::Span<const uint32_t> shards) const {
  if (sender_ != worker) {
    return absl::FailedPreconditionError(
        absl::StrCat("the state of worker ", worker.value(), " was not asked for, or is no longer"));
  }
  for (const uint32_t shard : shards) {
    if (shards_.count(shard) > 0) continue;
    return absl::InvalidArgumentError(absl::StrCat("shard ", shard, " holds no state of workers"));
  }
  return absl::OkStatus();
}

bool StateUpload::Came(uint64_t step, absl::Span<const uint32_t> shards) {
  if (missing_.empty() || step != step_) missing_ = shards_;
  step_ = step;
  for (const uint32_t shard : shards) missing_.erase(shard);
  if (!missing_.empty()) return false;
  sender_.reset();  // One question, one upload.
  return true;
}

}  // namespace recon
