#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "common/storage/file_system.h"
#include "proto/history.pb.h"

namespace recon {

// A file that TensorBoard reads: a run is a directory with such files, of which each start adds one.
//
//   file   = record*           the first is of the file's version
//   record = length (8 bytes, little endian)  masked CRC-32C of those (4)  Event message  masked CRC-32C of
//   it (4)
//
// The format is TensorFlow's (tensorflow/core/lib/io/record_writer.h, core/util/event.proto). Not
// thread-safe; blocks on the disk.
class EventFile {
 public:
  // A new file in `directory`, which is made if it is not there. `unix_ms` and `host` make its name.
  static absl::StatusOr<std::unique_ptr<EventFile>> Create(FileSystem* files, const std::string& directory,
                                                           int64_t unix_ms, const std::string& host);

  // A history, or the next piece of it: "train/NAME" for each series of the job, "eval/NAME" for those of
  // evaluations, at their times and by updates of the parameters; what is not finite is left out. `worker`
  // (may be null): its series instead.
  absl::Status Add(const JobHistory& piece, const HistoryTrack* worker);

 private:
  explicit EventFile(std::unique_ptr<FileSystem::File> file) : file_(std::move(file)) {}
  // One point of a track.
  absl::Status AddPoint(const HistoryTrack& track, int point, const char* prefix);
  absl::Status Append(const TensorBoardEvent& event);

  const std::unique_ptr<FileSystem::File> file_;
  int64_t step_ = 0;  // Updates, as far as points have told.
};

// CRC-32C (Castagnoli; RFC 3720, appendix B.4).
uint32_t Crc32c(absl::string_view bytes);

}  // namespace recon
