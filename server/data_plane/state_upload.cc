#include "server/data_plane/state_upload.h"

#include "absl/strings/str_cat.h"

namespace recon {

void StateUpload::AskOf(WorkerId worker, uint64_t upload) {
  sender_ = worker;
  upload_ = upload;
  step_.reset();
  missing_ = shards_;
}

absl::Status StateUpload::Check(WorkerId worker, uint64_t upload, uint64_t step,
                                absl::Span<const uint32_t> shards) const {
  // What the head has told the worker will soon be told here.
  if (upload > upload_ || (commits_ && upload == upload_ && sender_)) {
    return absl::UnavailableError(absl::StrCat("upload ", upload, " of a state is not asked for yet"));
  }
  if (sender_ != worker || upload != upload_) {
    return absl::FailedPreconditionError(
        absl::StrCat("the state of worker ", worker.value(), " was not asked for, or is no longer"));
  }
  for (const uint32_t shard : shards) {
    if (shards_.count(shard) > 0) continue;
    return absl::InvalidArgumentError(absl::StrCat("shard ", shard, " holds no state of workers"));
  }
  if (step_ && step != *step_) {
    return absl::FailedPreconditionError(
        absl::StrCat("upload ", upload, " is of the state before step ", *step_, ", not ", step));
  }
  if (whole()) return absl::AlreadyExistsError(absl::StrCat("upload ", upload, " has come whole"));
  return absl::OkStatus();
}

bool StateUpload::Came(uint64_t upload, absl::Span<const uint32_t> shards) {
  if (!sender_ || upload != upload_ || whole()) return false;
  for (const uint32_t shard : shards) missing_.erase(shard);
  return whole();
}

absl::Status StateUpload::BeginCommit(uint64_t upload) {
  if (!shards_.empty() && (!sender_ || upload != upload_ || !whole())) {
    return absl::FailedPreconditionError(absl::StrCat("upload ", upload, " of a state is not whole here"));
  }
  sender_.reset();
  commits_ = true;
  return absl::OkStatus();
}

}  // namespace recon
