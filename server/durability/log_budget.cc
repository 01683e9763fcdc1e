#include "server/durability/log_budget.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "common/base/limits.h"
#include "common/base/status_macros.h"

namespace recon {

absl::StatusOr<LogRoom> LookForLogRoom(FileSystem* files, const PushLog::Options& options) {
  LogRoom room;
  RECON_ASSIGN_OR_RETURN(room.free_bytes, files->FreeBytes(options.directory));
  RECON_ASSIGN_OR_RETURN(room.log_bytes, BytesBelow(files, options.directory));
  // A segment, and what full() wants to see free.
  room.enough = room.free_bytes >= options.segment_bytes + 2 * limits::kLogExtentBytes &&
                room.log_bytes + options.segment_bytes <= options.budget_bytes;
  return room;
}

absl::Status SetLogBudget(FileSystem* files, uint64_t max_bytes, uint64_t segment_bytes,
                          PushLog::Options* options) {
  if (max_bytes != 0 && max_bytes < limits::kLogBudgetBytesMin) {
    return absl::InvalidArgumentError(absl::StrCat("--log-max-bytes ", max_bytes, ": a push log needs ",
                                                   limits::kLogBudgetBytesMin, " bytes at least"));
  }
  RECON_RETURN_IF_ERROR(files->CreateDirectories(options->directory));
  if (max_bytes == 0) {
    RECON_ASSIGN_OR_RETURN(const LogRoom room, LookForLogRoom(files, *options));
    const uint64_t half = (std::min(room.free_bytes, limits::kLogBudgetBytesMax * 2) + room.log_bytes) / 2;
    // The other half is for snapshots: on a disk that is nearly full a larger log would leave no room for the
    // one that it waits for.
    max_bytes = std::min(std::max(half, limits::kLogBudgetBytesMin / 2), limits::kLogBudgetBytesMax);
  }
  options->budget_bytes = max_bytes;
  options->segment_bytes = std::min(segment_bytes, std::max(max_bytes / 8, limits::kLogSegmentBytesMin));
  return absl::OkStatus();
}

}  // namespace recon
