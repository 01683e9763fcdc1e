#include "common/base/regular_file.h"

#include <fcntl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <cerrno>

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

TEST_CASE("opening what is no regular file returns at once and says what it is", "[base]") {
  const TempDir directory;
  REQUIRE(mkfifo((directory / "pipe").c_str(), 0600) == 0);
  for (const int flags : {O_RDONLY, O_WRONLY, O_RDWR, O_WRONLY | O_CREAT | O_TRUNC}) {
    CAPTURE(flags);
    const auto refused = [&](const std::string& path, const std::string& kind) {
      const OpenedFile opened = OpenRegularFile(path, flags);
      CHECK_FALSE(opened.ok());
      CHECK(opened.other == kind);
      CHECK(opened.status(path).message() == absl::StrCat(path, " is ", kind, ", no regular file"));
    };
    refused(directory / "pipe", "a pipe");
    refused(directory.path(), "a directory");
    refused("/dev/null", "a device");
  }
  // Somebody reads from the pipe: it could be opened.
  const OwnedFd reader(open((directory / "pipe").c_str(), O_RDONLY | O_NONBLOCK | O_CLOEXEC));
  CHECK(OpenRegularFile(directory / "pipe", O_WRONLY).other == "a pipe");
}

TEST_CASE("a regular file is opened as by open(), to be read and written without conditions", "[base]") {
  const TempDir directory;
  {
    const OpenedFile made = OpenRegularFile(directory / "file", O_RDWR | O_CREAT | O_EXCL, 0600);
    REQUIRE(made.ok());
    CHECK((fcntl(made.fd.get(), F_GETFL) & O_NONBLOCK) == 0);
    CHECK((fcntl(made.fd.get(), F_GETFD) & FD_CLOEXEC) != 0);
    REQUIRE(write(made.fd.get(), "text", 4) == 4);
  }
  CHECK(OpenRegularFile(directory / "file", O_RDWR | O_CREAT | O_EXCL).error == EEXIST);
  CHECK(OpenRegularFile(directory / "absent", O_RDONLY).error == ENOENT);
  CHECK(*ReadRegularFile(directory / "file", 4) == "text");
  const absl::Status large = ReadRegularFile(directory / "file", 3).status();
  CHECK(absl::IsInvalidArgument(large));
  CHECK(large.message() == (directory / "file") + " has more than 3 bytes");
  CHECK(absl::IsNotFound(ReadRegularFile(directory / "absent", 1).status()));
  CHECK(absl::IsInvalidArgument(ReadRegularFile("/dev/zero", 1).status()));
}

TEST_CASE("a finished file may replace a file, and nothing else", "[base]") {
  const TempDir directory;
  WriteWholeFile(directory / "file", "text");
  REQUIRE(mkfifo((directory / "pipe").c_str(), 0600) == 0);
  CHECK(CheckReplaceable(directory / "file").ok());
  CHECK(CheckReplaceable(directory / "absent").ok());
  CHECK(absl::IsInvalidArgument(CheckReplaceable(directory / "pipe")));
  CHECK(absl::IsInvalidArgument(CheckReplaceable("/dev/null")));
}

}  // namespace recon
