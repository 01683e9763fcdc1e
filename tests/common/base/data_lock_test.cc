#include "common/base/data_lock.h"

#include <unistd.h>

#include <optional>

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

}  // namespace recon
