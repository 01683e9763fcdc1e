#include "common/base/private_file.h"

#include <sys/stat.h>
#include <unistd.h>

#include "absl/strings/match.h"
#include "catch2/catch.hpp"
#include "tests/support/process.h"
#include "tests/support/temp_dir.h"

namespace recon {

TEST_CASE("a private directory is its owner's alone, what is above it is not", "[private_file]") {
  const TempDir directory;
  const std::string path = directory / "above/data";
  REQUIRE(MakePrivateDirectory(path).ok());
  struct stat found {};
  REQUIRE(stat(path.c_str(), &found) == 0);
  CHECK((found.st_mode & 0777) == 0700);
  CHECK(MakePrivateDirectory(path).ok());
  WriteWholeFile(directory / "file", "x");
  const absl::Status status = MakePrivateDirectory(directory / "file");
  CHECK(absl::IsFailedPrecondition(status));
  CHECK(absl::StrContains(status.message(), "no directory"));
}

TEST_CASE("a file of a server's own is written through no link and into no pipe", "[private_file]") {
  const TempDir directory;
  REQUIRE(WriteOwnFile(directory / "own", "a longer text\n").ok());
  REQUIRE(WriteOwnFile(directory / "own", "text\n").ok());
  CHECK(ReadWholeFile(directory / "own") == "text\n");
  WriteWholeFile(directory / "others", "untouched");
  REQUIRE(symlink((directory / "others").c_str(), (directory / "link").c_str()) == 0);
  REQUIRE(mkfifo((directory / "pipe").c_str(), 0600) == 0);
  for (const char* name : {"link", "pipe"}) {
    const absl::Status status = WriteOwnFile(directory / name, "text");
    CHECK(absl::IsFailedPrecondition(status));
    CHECK(absl::StrContains(status.message(), directory / name));
  }
  CHECK(ReadWholeFile(directory / "others") == "untouched");
}

}  // namespace recon
