#include "server/process/known_workers.h"

#include <fstream>

#include "catch2/catch.hpp"
#include "common/base/limits.h"
#include "tests/support/temp_dir.h"

namespace recon {

TEST_CASE("the workers that a server has admitted are known to its next process", "[known_workers]") {
  const TempDir directory;
  const std::string path = directory / "WORKERS";
  {
    KnownWorkers before(path);
    before.Load();  // There is no file.
    CHECK_FALSE(before.Has(Incarnation(17)));
    REQUIRE(before.Note(Incarnation(17)).ok());
    REQUIRE(before.Note(Incarnation(0xfedcba9876543210)).ok());
    CHECK(before.Has(Incarnation(17)));
  }
  std::ofstream(path, std::ios::app) << "no number\n0\n";
  KnownWorkers after(path);
  after.Load();
  CHECK(after.Has(Incarnation(17)));
  CHECK(after.Has(Incarnation(0xfedcba9876543210)));
  CHECK_FALSE(after.Has(Incarnation(0)));
  CHECK_FALSE(after.Has(Incarnation(18)));
}

TEST_CASE("of many workers the last ones are known", "[known_workers]") {
  const TempDir directory;
  KnownWorkers workers(directory / "WORKERS");
  for (uint64_t i = 1; i <= limits::kMembersMax + 1; ++i) REQUIRE(workers.Note(Incarnation(i)).ok());
  CHECK_FALSE(workers.Has(Incarnation(1)));
  CHECK(workers.Has(Incarnation(2)));
  CHECK(workers.Has(Incarnation(limits::kMembersMax + 1)));
}

}  // namespace recon
