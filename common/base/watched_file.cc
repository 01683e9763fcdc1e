#include "common/base/watched_file.h"

#include <sys/stat.h>

#include "absl/strings/str_cat.h"

namespace recon {

absl::StatusOr<bool> WatchedFile::Changed(absl::Time now) {
  if (now < look_at_) return false;
  look_at_ = now + kLook;
  struct stat found {};
  if (stat(path_.c_str(), &found) != 0) return absl::NotFoundError(absl::StrCat(path_, ": cannot be read"));
  seen_ = absl::StrCat(found.st_ino, " ", found.st_size, " ", found.st_mtim.tv_sec, " ",
                       found.st_mtim.tv_nsec, " ", found.st_mode);
  return seen_ != read_;
}

}  // namespace recon
