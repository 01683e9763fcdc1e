#include "common/base/data_lock.h"

#include <fcntl.h>
#include <sys/file.h>
#include <unistd.h>

#include <cerrno>
#include <filesystem>
#include <system_error>

#include "absl/strings/str_cat.h"
#include "common/base/log.h"
#include "common/base/regular_file.h"

namespace recon {

namespace {

// 0, or the error; EWOULDBLOCK if another process has it. Some file systems know one of the two kinds only.
// Both belong to the open file.
int Lock(int fd, const std::string& directory) {
  if (flock(fd, LOCK_EX | LOCK_NB) == 0) return 0;
  if (errno != ENOLCK && errno != EOPNOTSUPP && errno != ENOSYS && errno != EINVAL) return errno;
  struct flock whole {};
  whole.l_type = F_WRLCK;
  whole.l_whence = SEEK_SET;
  if (fcntl(fd, F_OFD_SETLK, &whole) != 0) return errno == EACCES ? EWOULDBLOCK : errno;
  LogInfo("{} has no flock: its LOCK is locked by fcntl", directory);
  return 0;
}

}  // namespace

absl::StatusOr<DataLock> DataLock::Acquire(const std::string& directory) {
  std::error_code error;
  std::filesystem::create_directories(directory, error);
  if (error) {
    return absl::FailedPreconditionError(
        absl::StrCat("data directory ", directory, ": cannot create: ", error.message()));
  }
  const std::string path = directory + "/LOCK";
  OpenedFile lock = OpenRegularFile(path, O_RDWR | O_CREAT | O_NOFOLLOW);
  if (!lock.ok()) return absl::FailedPreconditionError(lock.status(path).message());
  const int fd = lock.fd.Release();
  const int failed = Lock(fd, directory);
  if (failed != 0 && failed != EWOULDBLOCK) {
    close(fd);
    return absl::FailedPreconditionError(
        absl::StrCat("data directory ", directory,
                     " cannot be locked: ", std::error_code(failed, std::generic_category()).message(),
                     ": two servers could spoil it; choose a file system with locks"));
  }
  if (failed != 0) {
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
