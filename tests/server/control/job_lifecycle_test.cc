#include "server/control/job_lifecycle.h"

#include <csignal>

#include "catch2/catch.hpp"
#include "tests/support/death.h"

namespace recon {
namespace {

const absl::Time kNow = absl::UnixEpoch() + absl::Hours(1);

// A job whose work is done and whose last snapshot is being taken.
JobLifecycle FinishingJob() {
  JobLifecycle job;
  job.Start();
  REQUIRE(job.BeginFinish(kNow));
  return job;
}

}  // namespace

TEST_CASE("a job runs once it has been started", "[lifecycle]") {
  JobLifecycle job;
  CHECK(job.phase() == PHASE_WAITING);
  job.Start();
  CHECK(job.phase() == PHASE_RUNNING);
  CHECK(job.MayGrant(kNow));
}

TEST_CASE("a job that goes on in a new process gives out no work for a second", "[lifecycle]") {
  JobLifecycle job;
  job.Resume();
  job.NoteServing(kNow);
  CHECK(job.started());
  CHECK(job.phase() == PHASE_RUNNING);
  CHECK_FALSE(job.MayGrant(kNow));
  CHECK_FALSE(job.MayGrant(kNow + absl::Milliseconds(999)));
  CHECK(job.MayGrant(kNow + absl::Seconds(1)));
}

TEST_CASE("the last snapshot is taken once, and makes the job finished", "[lifecycle]") {
  JobLifecycle job = FinishingJob();
  CHECK_FALSE(job.BeginFinish(kNow));
  CHECK(job.ending());
  CHECK_FALSE(job.finished());
  CHECK(job.phase() == PHASE_RUNNING);
  job.EndFinish(/*published=*/true, kNow);
  CHECK(job.finished());
  CHECK(job.phase() == PHASE_FINISHED);
  CHECK_FALSE(job.BeginFinish(kNow + absl::Hours(1)));
}

TEST_CASE("a last snapshot that fails is taken again after two seconds, and the job is not at its end",
          "[lifecycle]") {
  JobLifecycle job = FinishingJob();
  job.EndFinish(/*published=*/false, kNow);
  CHECK_FALSE(job.finished());
  CHECK_FALSE(job.ending());
  CHECK_FALSE(job.BeginFinish(kNow + absl::Milliseconds(1999)));
  CHECK(job.BeginFinish(kNow + absl::Seconds(2)));
  job.EndFinish(/*published=*/true, kNow + absl::Seconds(3));
  CHECK(job.finished());
}

TEST_CASE("a job that drains takes no last snapshot of its own, but one that is under way counts",
          "[lifecycle]") {
  SECTION("it drains first") {
    JobLifecycle job;
    job.Start();
    job.BeginDrain();
    CHECK(job.phase() == PHASE_DRAINING);
    CHECK(job.ending());
    CHECK_FALSE(job.BeginFinish(kNow));
  }
  SECTION("the snapshot is under way") {
    JobLifecycle job = FinishingJob();
    job.BeginDrain();
    CHECK(job.phase() == PHASE_DRAINING);
    job.EndFinish(/*published=*/true, kNow);
    CHECK(job.phase() == PHASE_FINISHED);
  }
}

TEST_CASE("a finished job is quiet when all workers have left and others could see it", "[lifecycle]") {
  JobLifecycle job = FinishingJob();
  const absl::Duration grace = absl::Seconds(3);
  CHECK_FALSE(job.DoneAndQuiet(kNow + absl::Hours(1), grace, /*alive=*/0));
  job.EndFinish(true, kNow);
  CHECK_FALSE(job.DoneAndQuiet(kNow + absl::Milliseconds(999), grace, 0));
  CHECK(job.DoneAndQuiet(kNow + absl::Seconds(1), grace, 0));
  CHECK_FALSE(job.DoneAndQuiet(kNow + absl::Seconds(3), grace, 1));
  CHECK(job.DoneAndQuiet(kNow + absl::Milliseconds(3001), grace, 1));
}

TEST_CASE("what may happen to a job once ends the process when it happens twice", "[lifecycle]") {
  JobLifecycle started;
  started.Start();
  CHECK(DeathOf([&] { started.Start(); }).signal == SIGABRT);
  JobLifecycle finished = FinishingJob();
  finished.EndFinish(true, kNow);
  CHECK(DeathOf([&] { finished.EndFinish(true, kNow); }).signal == SIGABRT);
}

}  // namespace recon
