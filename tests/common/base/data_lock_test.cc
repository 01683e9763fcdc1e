#include "common/base/data_lock.h"

#include <signal.h>
#include <sys/resource.h>
#include <unistd.h>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "catch2/catch.hpp"
#include "tests/support/temp_dir.h"

namespace recon {

TEST_CASE("a data directory has one holder, and the next one is told who", "[data_lock]") {
  const TempDir directory;
  auto first = DataLock::Acquire(directory / "data");
  REQUIRE(first.ok());
  const auto second = DataLock::Acquire(directory / "data");
  REQUIRE(absl::IsFailedPrecondition(second.status()));
  CHECK(absl::StrContains(second.status().message(), absl::StrCat("in use by process ", getpid())));
  { const DataLock released = *std::move(first); }
  CHECK(DataLock::Acquire(directory / "data").ok());
}

TEST_CASE("a data directory that cannot be made is refused by name", "[data_lock]") {
  const TempDir directory;
  WriteWholeFile(directory / "file", "x");
  const auto lock = DataLock::Acquire(directory / "file/data");
  REQUIRE_FALSE(lock.ok());
  CHECK(absl::StrContains(lock.status().message(), "file/data"));
}

TEST_CASE("a data directory's lock is written through no link", "[data_lock]") {
  const TempDir directory;
  const std::string data = directory / "data";
  REQUIRE(DataLock::Acquire(data).ok());
  WriteWholeFile(directory / "others", "untouched");
  REQUIRE(unlink((data + "/LOCK").c_str()) == 0);
  REQUIRE(symlink((directory / "others").c_str(), (data + "/LOCK").c_str()) == 0);
  const auto lock = DataLock::Acquire(data);
  REQUIRE_FALSE(lock.ok());
  CHECK(absl::StrContains(lock.status().message(), "/LOCK"));
  CHECK(ReadWholeFile(directory / "others") == "untouched");
}

TEST_CASE("a data directory on a disk with no room left can still be taken", "[data_lock]") {
  const TempDir directory;
  REQUIRE(DataLock::Acquire(directory / "data").ok());
  rlimit limit{};
  REQUIRE(getrlimit(RLIMIT_FSIZE, &limit) == 0);
  const rlimit none{0, limit.rlim_max};
  const auto handler = signal(SIGXFSZ, SIG_IGN);
  REQUIRE(setrlimit(RLIMIT_FSIZE, &none) == 0);  // No file of this process may grow.
  const auto lock = DataLock::Acquire(directory / "data");
  const auto second = DataLock::Acquire(directory / "data");
  REQUIRE(setrlimit(RLIMIT_FSIZE, &limit) == 0);
  signal(SIGXFSZ, handler);
  CHECK(lock.ok());
  CHECK(absl::StrContains(second.status().message(), "in use by process unknown"));
}

}  // namespace recon
