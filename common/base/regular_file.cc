#include "common/base/regular_file.h"

#include <sys/stat.h>

#include <cerrno>

#include "absl/strings/str_cat.h"

namespace recon {
namespace {

const char* Kind(mode_t mode) {
  if (S_ISFIFO(mode)) return "a pipe";
  if (S_ISDIR(mode)) return "a directory";
  if (S_ISSOCK(mode)) return "a socket";
  return "a device";
}

}  // namespace

absl::Status CheckRegularFile(const std::string& path) {
  struct stat found {};
  if (stat(path.c_str(), &found) != 0) return absl::ErrnoToStatus(errno, absl::StrCat("look at ", path));
  if (S_ISREG(found.st_mode)) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(path, " is ", Kind(found.st_mode), ", no regular file"));
}

}  // namespace recon
