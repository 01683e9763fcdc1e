#pragma once

#include <string>

#include "absl/status/statusor.h"

namespace recon {

// The right to use a data directory, held by at most one process: an advisory lock (flock) on its
// file LOCK, which the operating system drops when the process dies.
class DataLock {
 public:
  // Creates the directory if needed. FailedPrecondition if another process holds the lock, naming it.
  static absl::StatusOr<DataLock> Acquire(const std::string& directory);

  DataLock(DataLock&& other) noexcept;
  DataLock& operator=(DataLock&&) = delete;
  ~DataLock();

 private:
  explicit DataLock(int fd) : fd_(fd) {}

  int fd_;
};

}  // namespace recon
