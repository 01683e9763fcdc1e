#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/statusor.h"
#include "common/base/byte_chain.h"
#include "common/storage/file_system.h"
#include "server/durability/log_format.h"

namespace recon {

// What reading a push log (LOG.md) came to.
struct LogEnd {
  uint64_t next_sequence = 0;  // Of the record that would come next.
  uint64_t records = 0;        // That were handed out,
  uint64_t bytes = 0;          // and their bytes.
  // Not empty: something that is not zero follows the end, and where. A crash leaves that, too.
  std::string trailing;
  // Records of later sequences that cannot be applied: the log is damaged, `trailing` says where.
  uint64_t records_lost = 0;
  // Segments with nothing in them that was handed out, of which some may hold those records.
  std::vector<std::string> unread_segments;
  // Segments with such records behind some that were handed out.
  std::vector<std::string> damaged_segments;
};

class LogVisitor {
 public:
  virtual ~LogVisitor() = default;
  // Before the first record and wherever the rules change.
  virtual absl::Status OnRules(const ApplyRules& rules) = 0;
  // `payload` keeps what it refers to alive.
  virtual absl::Status OnRecord(LogRecordKind kind, uint64_t sequence, const ByteChain& payload) = 0;
};

// Hands out the records from `first` on, in order, up to the first that is not as it should be. An error of
// the visitor ends it and is returned. A log that is not there, or begins later than `first`, hands out
// nothing.
absl::StatusOr<LogEnd> ReadLog(FileSystem* files, const std::string& directory, uint64_t first,
                               LogVisitor* visitor);

// Whole records of pushes and closings there are from sequence `first` on, needed or not.
absl::StatusOr<uint64_t> CountLoggedPushes(FileSystem* files, const std::string& directory,
                                           uint64_t first = 0);

// Keeps segments with records that cannot be used under other names, <segment>.damaged: unread ones would be
// in the way of new ones, the others would be trimmed.
absl::Status SetAside(FileSystem* files, const std::string& directory, const LogEnd& end);

}  // namespace recon
