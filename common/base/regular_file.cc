#include "common/base/regular_file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <utility>

#include "absl/strings/str_cat.h"

namespace recon {
namespace {

// Empty for a regular file.
const char* OtherKind(mode_t mode) { return S_ISREG(mode) ? "" : FileKind(mode); }

std::string OtherKindOf(const std::string& path) {
  struct stat found {};
  return stat(path.c_str(), &found) == 0 ? OtherKind(found.st_mode) : "";
}

// What open() says of pipes without a reader, sockets, devices without a driver, and directories.
bool MayBeOther(int error) { return error == ENXIO || error == ENODEV || error == EISDIR; }

OpenedFile Refused(int error, std::string other) {
  OpenedFile refused;
  refused.other = std::move(other);
  refused.error = refused.other.empty() ? error : 0;
  return refused;
}

}  // namespace

const char* FileKind(mode_t mode) {
  if (S_ISREG(mode)) return "a file";
  if (S_ISFIFO(mode)) return "a pipe";
  if (S_ISDIR(mode)) return "a directory";
  if (S_ISSOCK(mode)) return "a socket";
  return "a device";
}

absl::Status OpenedFile::status(const std::string& path) const {
  if (ok()) return absl::OkStatus();
  if (!other.empty())
    return absl::InvalidArgumentError(absl::StrCat(path, " is ", other, ", no regular file"));
  return absl::ErrnoToStatus(error, absl::StrCat(path, ": cannot be opened"));
}

OpenedFile OpenRegularFile(const std::string& path, int flags, unsigned mode) {
  OwnedFd fd(open(path.c_str(), flags | O_CLOEXEC | O_NONBLOCK, mode));
  // A file system may want to ask another process first, of a file that both use.
  if (fd.get() < 0 && errno == EWOULDBLOCK && OtherKindOf(path).empty()) {
    fd = OwnedFd(open(path.c_str(), flags | O_CLOEXEC, mode));
  }
  if (fd.get() < 0) {
    const int error = errno;
    return Refused(error, MayBeOther(error) ? OtherKindOf(path) : "");
  }
  struct stat found {};
  if (fstat(fd.get(), &found) != 0) return Refused(errno, "");
  if (!S_ISREG(found.st_mode)) return Refused(0, OtherKind(found.st_mode));
  const int set = fcntl(fd.get(), F_GETFL);
  if (set < 0 || fcntl(fd.get(), F_SETFL, set & ~O_NONBLOCK) != 0) return Refused(errno, "");
  OpenedFile opened;
  opened.fd = std::move(fd);
  return opened;
}

absl::StatusOr<std::string> ReadRegularFile(const std::string& path, size_t bytes_max) {
  const OpenedFile file = OpenRegularFile(path, O_RDONLY);
  if (!file.ok()) return file.status(path);
  std::string text;
  char piece[16384];
  while (true) {
    const ssize_t got = read(file.fd.get(), piece, sizeof piece);
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) return absl::ErrnoToStatus(errno, absl::StrCat(path, ": cannot be read"));
    if (got == 0) return text;
    text.append(piece, static_cast<size_t>(got));
    if (text.size() > bytes_max) {
      return absl::InvalidArgumentError(absl::StrCat(path, " has more than ", bytes_max, " bytes"));
    }
  }
}

absl::Status CheckRegularFile(const std::string& path) {
  struct stat found {};
  OpenedFile looked;
  if (stat(path.c_str(), &found) != 0) return absl::ErrnoToStatus(errno, absl::StrCat("look at ", path));
  if (S_ISREG(found.st_mode)) return absl::OkStatus();
  looked.other = OtherKind(found.st_mode);
  return looked.status(path);
}

absl::Status CheckDirectory(const std::string& path) {
  struct stat found {};
  if (stat(path.c_str(), &found) != 0) return absl::ErrnoToStatus(errno, absl::StrCat("look at ", path));
  if (S_ISDIR(found.st_mode)) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(path, " is ", FileKind(found.st_mode), ", no directory"));
}

absl::Status CheckReplaceable(const std::string& path) {
  const absl::Status found = CheckRegularFile(path);
  return absl::IsNotFound(found) ? absl::OkStatus() : found;
}

}  // namespace recon
