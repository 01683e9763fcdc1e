#pragma once

#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/storage/file_system.h"
#include "proto/history.pb.h"

namespace recon {

// The history of a job in its data directory: a file that is replaced as a whole.
//
//   file  = magic (8 bytes, "RECONHS1")  length (8 bytes, little endian)  XXH3-64 of what follows (8 bytes)
//           JobHistory (length bytes)
//
// It is not synchronized: a failure of the machine may cost the history, and nothing else. Blocks on the
// disk.

std::string HistoryPath(const std::string& data_directory);

// Returns how many bytes the file has. ResourceExhausted where the disk is nearly full.
absl::StatusOr<uint64_t> WriteHistory(FileSystem* files, const std::string& data_directory,
                                      const JobHistory& history);

// One that cannot be read is kept as "history.unread", in place of an earlier one.
absl::Status SetHistoryAside(FileSystem* files, const std::string& data_directory);

// NotFound if there is none; DataLoss if it is damaged.
absl::StatusOr<JobHistory> ReadHistory(FileSystem* files, const std::string& data_directory);

}  // namespace recon
