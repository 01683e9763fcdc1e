#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "common/codec/frame.h"
#include "common/storage/file_system.h"
#include "server/durability/log_reader.h"

namespace recon {

// What pushes there are in a part of a log, on the shards of one server.
struct LoggedWork {
  uint64_t pushes = 0;
  uint64_t samples = 0;
};
// Of the records from `first` to `last`. What follows a damaged record is not seen. Blocks on the disk; a log
// that is being written may be read.
absl::StatusOr<LoggedWork> CountWork(FileSystem* files, const std::string& directory, uint64_t first,
                                     uint64_t last);

// Reads a push log without applying it: where it begins and ends, and what lies where.
class LogSurvey : public LogVisitor {
 public:
  // `on_frame` (may be empty) gets each frame's header.
  explicit LogSurvey(std::function<void(uint64_t sequence, const FrameHeader&)> on_frame = nullptr)
      : on_frame_(std::move(on_frame)) {}

  // From `first` on, up to `last`. What follows a damaged record is not seen.
  absl::StatusOr<LogEnd> Read(FileSystem* files, const std::string& directory, uint64_t first,
                              uint64_t last = UINT64_MAX);
  // Of each segment, by the first record that it may have: the history of its records. None if there is no
  // log.
  static absl::StatusOr<std::map<uint64_t, uint64_t>> Histories(FileSystem* files,
                                                                const std::string& directory);

  absl::Status OnRules(const ApplyRules&) override { return absl::OkStatus(); }
  absl::Status OnRecord(LogRecordKind kind, uint64_t sequence, const ByteChain& payload) override;

  uint64_t last() const { return last_seen_; }  // 0 if there was none.
  // A step that no frame has, nor a later one.
  uint64_t first_step() const { return first_step_; }
  // Control records, in their order, to be added to a state.
  const std::vector<std::string>& control() const { return control_; }

 private:
  const std::function<void(uint64_t, const FrameHeader&)> on_frame_;
  uint64_t last_wanted_ = UINT64_MAX;
  uint64_t last_seen_ = 0;
  uint64_t first_step_ = 0;
  std::vector<std::string> control_;
};

}  // namespace recon
