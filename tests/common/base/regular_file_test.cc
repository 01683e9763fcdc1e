#include "common/base/regular_file.h"

#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include "absl/strings/str_cat.h"
#include "catch2/catch.hpp"
#include "common/base/owned_fd.h"
#include "tests/support/temp_dir.h"

namespace recon {

TEST_CASE("what is no regular file is named with its kind, and not opened", "[base]") {
  const TempDir directory;
  WriteWholeFile(directory / "file", "text");
  CHECK(CheckRegularFile(directory / "file") == absl::OkStatus());
  REQUIRE(symlink("file", (directory / "link").c_str()) == 0);
  CHECK(CheckRegularFile(directory / "link") == absl::OkStatus());

  REQUIRE(mkfifo((directory / "pipe").c_str(), 0600) == 0);
  REQUIRE(symlink("pipe", (directory / "to-pipe").c_str()) == 0);
  sockaddr_un address = {};
  address.sun_family = AF_UNIX;
  (directory / "socket").copy(address.sun_path, sizeof(address.sun_path) - 1);
  const OwnedFd socket_fd(socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
  REQUIRE(bind(socket_fd.get(), reinterpret_cast<const sockaddr*>(&address), sizeof(address)) == 0);
  const auto refused = [](const std::string& path, const std::string& kind) {
    const absl::Status status = CheckRegularFile(path);
    CHECK(absl::IsInvalidArgument(status));
    CHECK(status.message() == absl::StrCat(path, " is ", kind, ", no regular file"));
  };
  refused(directory / "pipe", "a pipe");
  refused(directory / "to-pipe", "a pipe");
  refused(directory / "socket", "a socket");
  refused(directory.path(), "a directory");
  refused("/dev/zero", "a device");
  CHECK(absl::IsNotFound(CheckRegularFile(directory / "absent")));
}

}  // namespace recon
