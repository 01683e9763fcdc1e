#include "common/base/data_lock.h"

#include <fcntl.h>
#include <sys/file.h>
#include <unistd.h>

#include <cerrno>
#include <filesystem>
#include <system_error>

#include "absl/strings/str_cat.h"

namespace recon {

absl::StatusOr<DataLock> DataLock::Acquire(const std::string& directory) {
  std::error_code error;
  std::filesystem::create_directories(directory, error);
  if (error) {
    return absl::FailedPreconditionError(
        absl::StrCat("data directory ", directory, ": cannot create: ", error.message()));
  }
  const std::string path = directory + "/LOCK";
  const int fd = open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0644);
  if (fd < 0) return absl::ErrnoToStatus(errno, absl::StrCat("open ", path));
  if (flock(fd, LOCK_EX | LOCK_NB) != 0) {
    char pid[32] = "unknown";
    const ssize_t size = read(fd, pid, sizeof(pid) - 1);
    if (size > 0) pid[size] = '\0';
    close(fd);
    return absl::FailedPreconditionError(
        absl::StrCat("data directory ", directory, " is in use by process ", pid));
  }
  // Only for the message above: the lock holds without it, on a full disk too.
  const std::string pid = absl::StrCat(getpid());
  if (ftruncate(fd, 0) == 0) static_cast<void>(!write(fd, pid.data(), pid.size()));
  return DataLock(fd);
}

DataLock::DataLock(DataLock&& other) noexcept : fd_(other.fd_) { other.fd_ = -1; }

DataLock::~DataLock() {
  if (fd_ >= 0) close(fd_);
}

}  // namespace recon
