#include "common/storage/errno_status.h"

#include <cerrno>
#include <system_error>

#include "absl/strings/str_cat.h"

namespace recon {

absl::StatusCode CodeOfErrno(int error) {
  switch (error) {
    case ENOENT:
      return absl::StatusCode::kNotFound;
    case EEXIST:
    case ENOTEMPTY:
      return absl::StatusCode::kAlreadyExists;
    case EACCES:
    case EPERM:
    case EROFS:
      return absl::StatusCode::kPermissionDenied;
    case ENOSPC:
    case EDQUOT:
    case EFBIG:
      return absl::StatusCode::kResourceExhausted;
    case EISDIR:
    case ENOTDIR:
    case ELOOP:
    case ENAMETOOLONG:
    case EINVAL:
    case EXDEV:
    case EMLINK:
    case EOPNOTSUPP:
    case ENOSYS:
    case EBADF:
    case EFAULT:
      return absl::StatusCode::kFailedPrecondition;
    default:
      // EIO, ESTALE, ETIMEDOUT, EMFILE, ENFILE, ENOMEM, EAGAIN, EINTR, EBUSY, ENOLCK, ENXIO, ENODEV, and what
      // network file systems return of their connections: the next attempt may succeed.
      return absl::StatusCode::kUnavailable;
  }
}

absl::Status ErrnoStatus(int error, const std::string& what) {
  return absl::Status(CodeOfErrno(error),
                      absl::StrCat(what, ": ", std::error_code(error, std::generic_category()).message()));
}

}  // namespace recon
