#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "common/storage/file_system.h"
#include "proto/history.pb.h"
#include "server/history/event_file.h"
#include "server/history/history.h"

namespace recon {

// A running job's event file: what comes to its history, as it comes. Readers follow the file, and nothing of
// it can be taken back: it is bounded by writing less the older the job is. Points and evaluations of an
// interval are one, their mean: of a year there are 100,000, or 50 MB, in all files together.
//
// Not thread-safe; Write() blocks on the disk.
class EventStream {
 public:
  // A second, and twice as much each time so many points of the last length have been.
  static constexpr int64_t kPointsOfInterval = 8192;
  // Of a job that began `age_ms` ago.
  static int64_t IntervalMs(int64_t age_ms);

  // A file in `directory`, made with the first points. What `history` has is left to the process before.
  // `files` must outlive the stream.
  EventStream(FileSystem* files, std::string directory, const History& history);

  // What has come to the history, if it is time, or (`all`) whatever time it is. `now_ms` is the time of day,
  // and may be set back.
  JobHistory Take(const History& history, int64_t now_ms, bool all);
  // Does nothing with a piece that is empty.
  absl::Status Write(const JobHistory& piece);

 private:
  FileSystem* const files_;
  const std::string directory_;
  std::unique_ptr<EventFile> file_;  // Null before the first points.
  int64_t asked_at_ms_, taken_at_ms_ = 0;
  int64_t job_until_ms_, evaluations_until_ms_;  // Of what has been taken.
};

}  // namespace recon
