#include "common/base/private_file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <filesystem>
#include <system_error>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "common/base/log.h"
#include "common/base/owned_fd.h"
#include "common/base/regular_file.h"

namespace recon {

absl::Status MakePrivateDirectory(const std::string& path) {
  const std::filesystem::path parent = std::filesystem::absolute(path).lexically_normal().parent_path();
  std::error_code error;
  std::filesystem::create_directories(parent, error);
  if (error) {
    return absl::FailedPreconditionError(
        absl::StrCat(path, ": cannot create ", parent.string(), ": ", error.message()));
  }
  if (mkdir(path.c_str(), 0700) == 0) return absl::OkStatus();
  if (errno != EEXIST) return absl::ErrnoToStatus(errno, absl::StrCat("create ", path));
  struct stat found {};
  if (stat(path.c_str(), &found) != 0) return absl::ErrnoToStatus(errno, absl::StrCat("look at ", path));
  if (!S_ISDIR(found.st_mode)) {
    return absl::FailedPreconditionError(
        absl::StrCat(path, " is ", FileKind(found.st_mode), ", no directory"));
  }
  if ((found.st_mode & (S_IROTH | S_IXOTH | S_IWOTH)) != 0) {
    LogWarn(
        "{} is open to others of this machine (mode {}): the model is in it; chmod 700 keeps it to its owner",
        path, absl::StrFormat("%04o", found.st_mode & 07777));
  }
  return absl::OkStatus();
}

absl::Status WriteOwnFile(const std::string& path, const std::string& text, unsigned mode) {
  // Without waiting: a pipe without a reader would block.
  const OwnedFd fd(
      open(path.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC, mode));
  if (fd.get() < 0 && (errno == ELOOP || errno == ENXIO)) {
    return absl::FailedPreconditionError(absl::StrCat(path, " is a link or no regular file: remove it"));
  }
  if (fd.get() < 0) return absl::ErrnoToStatus(errno, absl::StrCat("open ", path));
  struct stat found {};
  if (fstat(fd.get(), &found) != 0 || !S_ISREG(found.st_mode)) {
    return absl::FailedPreconditionError(absl::StrCat(path, " is no regular file: remove it"));
  }
  const ssize_t written = write(fd.get(), text.data(), text.size());
  if (written != static_cast<ssize_t>(text.size())) {
    return absl::ErrnoToStatus(written < 0 ? errno : ENOSPC, absl::StrCat("write ", path));
  }
  return absl::OkStatus();
}

namespace {

// Its bytes, if its kind, owner and mode are what `check` wants.
absl::StatusOr<std::string> ReadChecked(const std::string& path, size_t bytes_max,
                                        absl::Status (*check)(const std::string& path,
                                                              const struct stat& found)) {
  // Nothing is opened that is not a file: of a device that would be an action.
  const OwnedFd found_fd(open(path.c_str(), O_PATH | O_CLOEXEC));
  if (found_fd.get() < 0) return absl::ErrnoToStatus(errno, absl::StrCat("open ", path));
  struct stat found {};
  if (fstat(found_fd.get(), &found) != 0) return absl::ErrnoToStatus(errno, absl::StrCat("look at ", path));
  if (!S_ISREG(found.st_mode)) {
    return absl::FailedPreconditionError(
        absl::StrCat(path, " is ", FileKind(found.st_mode), ", no regular file"));
  }
  if (absl::Status checked = check(path, found); !checked.ok()) return checked;
  const OwnedFd fd(open(absl::StrCat("/proc/self/fd/", found_fd.get()).c_str(), O_RDONLY | O_CLOEXEC));
  if (fd.get() < 0) return absl::ErrnoToStatus(errno, absl::StrCat("open ", path));
  std::string text(bytes_max + 1, '\0');
  const ssize_t bytes = read(fd.get(), text.data(), text.size());
  if (bytes < 0) return absl::ErrnoToStatus(errno, absl::StrCat("read ", path));
  if (static_cast<size_t>(bytes) > bytes_max) {
    return absl::FailedPreconditionError(absl::StrCat(path, " has more than ", bytes_max, " bytes"));
  }
  text.resize(static_cast<size_t>(bytes));
  return text;
}

}  // namespace

absl::StatusOr<std::string> ReadSecretFile(const std::string& path, size_t bytes_max) {
  return ReadChecked(path, bytes_max, [](const std::string& name, const struct stat& found) {
    if ((found.st_mode & (S_IROTH | S_IWOTH)) == 0) return absl::OkStatus();
    return absl::FailedPreconditionError(
        absl::StrCat(name, ": all users of this machine can read or write it: chmod 600"));
  });
}

absl::StatusOr<std::string> ReadOwnFile(const std::string& path, size_t bytes_max) {
  return ReadChecked(path, bytes_max, [](const std::string& name, const struct stat& found) {
    if (found.st_uid == geteuid() && (found.st_mode & S_IWOTH) == 0) return absl::OkStatus();
    return absl::FailedPreconditionError(absl::StrCat(name, " is another user's, or others can write it"));
  });
}

}  // namespace recon
