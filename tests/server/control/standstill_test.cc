#include "server/control/standstill.h"

#include "catch2/catch.hpp"

namespace recon {
namespace {

const absl::Time kNow = absl::UnixEpoch() + absl::Hours(1);

}  // namespace

TEST_CASE("a job that does not run is idle, and does not stand still", "[standstill]") {
  StandstillWatch watch;
  for (int second = 0; second <= 20; ++second) {
    CHECK_FALSE(watch.Note(7, /*runs=*/false, kNow + absl::Seconds(second)));
  }
  const absl::Time later = kNow + absl::Seconds(20);
  CHECK(watch.Idle(later) == absl::Seconds(20));
  CHECK(watch.Standing(later) == absl::ZeroDuration());
}

TEST_CASE("a job that runs and does not move stands still, which is said", "[standstill]") {
  StandstillWatch watch;
  CHECK_FALSE(watch.Note(7, /*runs=*/true, kNow));
  CHECK_FALSE(watch.Note(7, true, kNow + absl::Milliseconds(9999)));
  CHECK(watch.Note(7, true, kNow + absl::Seconds(10)));
  CHECK_FALSE(watch.Note(7, true, kNow + absl::Seconds(11)));
  CHECK(watch.Standing(kNow + absl::Seconds(11)) == absl::Seconds(11));
  CHECK(watch.Idle(kNow + absl::Seconds(11)) == absl::Seconds(11));
  SECTION("it moves") {
    CHECK_FALSE(watch.Note(8, true, kNow + absl::Seconds(12)));
    CHECK(watch.Idle(kNow + absl::Seconds(12)) == absl::ZeroDuration());
  }
  SECTION("it ends") {
    CHECK_FALSE(watch.Note(7, false, kNow + absl::Seconds(12)));
    CHECK(watch.Idle(kNow + absl::Seconds(12)) == absl::Seconds(12));
  }
  CHECK(watch.Standing(kNow + absl::Seconds(12)) == absl::ZeroDuration());
}

TEST_CASE("what a job waits for is the first thing that explains it", "[standstill]") {
  JobNeeds needs;
  needs.missing_servers = "server 2 is missing";
  needs.log.awaits_snapshot = true;
  needs.log.full = true;
  needs.log.disk_bytes = 90;
  needs.log.budget_bytes = 100;
  needs.holders = {{"a", 2, absl::Milliseconds(1500)}, {"b", 1, absl::ZeroDuration()}};
  CHECK(WhatJobWaitsFor(needs) == "server 2 is missing");
  needs.missing_servers.reset();
  CHECK(WhatJobWaitsFor(needs) == "it waits for a snapshot");
  needs.snapshot_error = "no room";
  CHECK(WhatJobWaitsFor(needs) == "it waits for a snapshot, and the last one failed: no room");
  needs.log.awaits_snapshot = false;
  CHECK(WhatJobWaitsFor(needs) ==
        "it waits for a snapshot that makes room in the push log, which has 90 bytes of its 100");
  needs.log.full = false;
  CHECK(WhatJobWaitsFor(needs) == "it waits for a worker: none is alive");
  needs.workers_alive = 3;
  CHECK(WhatJobWaitsFor(needs) ==
        "it waits for a push of a (2 leases, heard of 1.5s ago), b (1 leases, heard of 0 ago)");
  needs.holders.clear();
  CHECK(WhatJobWaitsFor(needs) == "it waits for the 3 workers there are to take work");
}

}  // namespace recon
