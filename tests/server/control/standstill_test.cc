#include "server/control/standstill.h"

#include "catch2/catch.hpp"

namespace recon {
namespace {

const absl::Time kNow = absl::UnixEpoch() + absl::Hours(1);

absl::Time After(double seconds) { return kNow + absl::Seconds(seconds); }

}  // namespace

TEST_CASE("a job of which nothing is expected is idle, and does not stand still", "[standstill]") {
  StandstillWatch watch;
  for (int second = 0; second <= 20; ++second) {
    CHECK_FALSE(watch.Note(7, Expected::kNothing, After(second)));
  }
  CHECK(watch.Idle(After(20)) == absl::Seconds(20));
  CHECK(watch.Standing(After(20)) == absl::ZeroDuration());
  CHECK(watch.NotBegun(After(20)) == absl::ZeroDuration());
  CHECK(watch.Said(After(20)).empty());
}

TEST_CASE("a job that has begun and does not move stands still, which is said", "[standstill]") {
  StandstillWatch watch;
  CHECK_FALSE(watch.Note(7, Expected::kToGoOn, kNow));
  CHECK_FALSE(watch.Note(7, Expected::kToGoOn, After(9.999)));
  CHECK(watch.Said(After(9.999)).empty());
  CHECK(watch.Note(7, Expected::kToGoOn, After(10)));
  CHECK_FALSE(watch.Note(7, Expected::kToGoOn, After(11)));
  CHECK(watch.Standing(After(11)) == absl::Seconds(11));
  CHECK(watch.Said(After(11)) == "the job has not moved for 11s");
  CHECK(watch.Idle(After(11)) == absl::Seconds(11));
  SECTION("it moves") {
    CHECK_FALSE(watch.Note(8, Expected::kToGoOn, After(12)));
    CHECK(watch.Idle(After(12)) == absl::ZeroDuration());
  }
  SECTION("it ends") {
    CHECK_FALSE(watch.Note(7, Expected::kNothing, After(12)));
    CHECK(watch.Idle(After(12)) == absl::Seconds(12));
  }
  CHECK(watch.Standing(After(12)) == absl::ZeroDuration());
  CHECK(watch.Said(After(12)).empty());
}

TEST_CASE("a job that has not begun does not stand still, and that it waits is said, too", "[standstill]") {
  StandstillWatch watch;
  CHECK_FALSE(watch.Note(0, Expected::kToBegin, kNow));
  CHECK(watch.NotBegun(After(9)) == absl::ZeroDuration());
  CHECK(watch.Note(0, Expected::kToBegin, After(10)));
  CHECK(watch.NotBegun(After(10)) == absl::Seconds(10));
  CHECK(watch.Standing(After(10)) == absl::ZeroDuration());
  CHECK(watch.Said(After(75)) == "the job has not begun for 1m15s");
  // Once it has begun it has ten seconds to move.
  CHECK_FALSE(watch.Note(0, Expected::kToGoOn, After(80)));
  CHECK(watch.NotBegun(After(80)) == absl::ZeroDuration());
  CHECK(watch.Standing(After(89)) == absl::ZeroDuration());
  CHECK(watch.Note(0, Expected::kToGoOn, After(90)));
}

TEST_CASE("what a job waits for names all that is missing", "[standstill]") {
  JobNeeds needs;
  needs.missing_servers = "server 2, which has gone";
  needs.workers_alive = 2;
  needs.lacks_values = true;
  CHECK(WhatJobWaitsFor(needs) == "it waits for server 2, which has gone");
  needs.workers_alive = 0;
  CHECK(WhatJobWaitsFor(needs) == "it waits for server 2, which has gone, and for a worker: none is alive");
  needs.epoch_error = "the disk is full";
  CHECK(WhatJobWaitsFor(needs) ==
        "it waits for server 2, which has gone, and for a new cluster epoch, and there is none: the disk is "
        "full, and for a worker: none is alive");
}

TEST_CASE("a job whose pushes wait for room at a server names that server, and nobody who pushes",
          "[standstill]") {
  JobNeeds needs;
  needs.workers_alive = 1;
  needs.holders.push_back({"w0", 1, absl::ZeroDuration()});
  needs.full_logs = "server 1 at host:7070: its disk is nearly full";
  CHECK(WhatJobWaitsFor(needs) == "it waits for server 1 at host:7070: its disk is nearly full");
}

TEST_CASE("a job that has not begun waits for servers, workers and initial parameters", "[standstill]") {
  JobNeeds needs;
  needs.begun = false;
  needs.lacks_values = true;
  CHECK(WhatJobWaitsFor(needs) == "it waits for a worker: none has come yet");
  needs.workers_min = 4;
  needs.workers_alive = 1;
  needs.values_from = "w0";
  CHECK(WhatJobWaitsFor(needs) ==
        "it waits for workers: 1 of the 4 that it begins with (--workers-min) are there, and for the initial "
        "parameters, which worker w0 was asked for");
  needs.workers_alive = 4;
  CHECK(WhatJobWaitsFor(needs) == "it waits for the initial parameters, which worker w0 was asked for");
  needs.values_from.clear();
  CHECK(WhatJobWaitsFor(needs) == "it waits for initial parameters");
  needs.lacks_values = false;
  needs.start_error = "no such file";
  CHECK(WhatJobWaitsFor(needs) == "it waits for what it cannot begin without: no such file");
}

TEST_CASE("a store that does not answer is named with how long the snapshot has been under way",
          "[standstill]") {
  JobNeeds needs;
  needs.workers_alive = 3;
  needs.saving = true;
  needs.snapshot_directory = "s3://bucket/job";
  CHECK(WhatJobWaitsFor(needs) == "it waits for a snapshot in s3://bucket/job");
  needs.snapshot_takes = absl::Milliseconds(34'567);
  CHECK(WhatJobWaitsFor(needs) == "it waits for a snapshot in s3://bucket/job, under way for 34s");
  needs.snapshot_error = "no room";
  needs.snapshot_takes = absl::ZeroDuration();
  CHECK(WhatJobWaitsFor(needs) ==
        "it waits for a snapshot in s3://bucket/job, and the last one failed: no room");
  needs.saving = false;
  needs.snapshot_error.clear();
  needs.snapshot_directory.clear();
  needs.log.full = true;
  needs.log.disk_bytes = 90;
  needs.log.budget_bytes = 100;
  CHECK(WhatJobWaitsFor(needs) ==
        "it waits for a snapshot that makes room in the push log, which has 90 bytes of its 100");
}

TEST_CASE("a job that lacks nothing waits for pushes, of those whom the open step lacks first",
          "[standstill]") {
  JobNeeds needs;
  needs.workers_alive = 3;
  CHECK(WhatJobWaitsFor(needs) == "it waits for the 3 workers there are to take work");
  needs.holders = {{"a", 2, absl::Milliseconds(1500), false}, {"b", 1, absl::ZeroDuration(), false}};
  CHECK(WhatJobWaitsFor(needs) ==
        "it waits for a push of a (2 leases, heard of 1.5s ago), b (1 leases, heard of 0 ago)");
  needs.holders[1].awaited = true;
  CHECK(WhatJobWaitsFor(needs) == "it waits for a push of b (1 leases, heard of 0 ago)");
  needs.holders.assign(10, {"c", 1, absl::ZeroDuration(), true});
  const std::string said = WhatJobWaitsFor(needs);
  CHECK(said.substr(said.size() - 13) == " and 2 others");
}

}  // namespace recon
