#pragma once

#include <cstdint>

#include "absl/status/statusor.h"
#include "common/storage/file_system.h"
#include "server/durability/push_log.h"

namespace recon {

// What there is for a push log in options.directory.
struct LogRoom {
  uint64_t free_bytes = 0;  // On its file system.
  uint64_t log_bytes = 0;   // Of the log's files that are there.
  // A new log can begin, and write for a while, beside what is there.
  bool enough = true;
};
absl::StatusOr<LogRoom> LookForLogRoom(FileSystem* files, const PushLog::Options& options);

// Sets the budget of `options` (whose directory is set, and is made if it is not there) and the size of its
// segments: `max_bytes`, or, if that is 0, half of what is free and of what the log has already. Segments
// have `segment_bytes` at most, and an eighth of the budget. InvalidArgument for a budget too small to work
// with.
absl::Status SetLogBudget(FileSystem* files, uint64_t max_bytes, uint64_t segment_bytes,
                          PushLog::Options* options);

}  // namespace recon
