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
// it can be taken back: it is bounded by writing less the older the job is. Points of an interval are one,
// their mean: of a year there are 100,000, or 50 MB, in all files together, as long as the history is kept,
// which has the job's age. Evaluations are written as they come, one for each data epoch: a million take
// 72 MB.
//
// A process that is killed takes with it the points of the interval that it was in. An evaluation that was
// written and was not in the history's file yet is written once more by the next process.
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

  // The evaluations that have come to the history; its points, too, if it is time, or (`all`) whatever time
  // it is. `now_ms` is the time of day, and may be set back: before the history notes that, what waits has to
  // be taken.
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
