#include "server/recovery/largest_pushes.h"

#include <cmath>

#include "catch2/catch.hpp"
#include "tests/server/data_plane/small_job.h"
#include "tests/support/temp_dir.h"

namespace recon {
namespace {

// A job whose pushes go through a log.
struct LoggedJob : SmallJob {
  LoggedJob() : SmallJob(kAsp, 3) {
    PushLog::Options options;
    options.directory = directory.path();
    server().log()->Set(
        *PushLog::Open(options, FileSystem::Local(), server().rules(), server().position().sequence + 1));
    server().log()->NoteSnapshot(server().position().sequence + 1);
  }

  const TempDir directory;
};

}  // namespace

TEST_CASE("the pushes with the largest gradients are found in the log, whole ones", "[recovery]") {
  LoggedJob job;
  const double root = std::sqrt(static_cast<double>(kSampleParams));
  for (uint64_t step = 0; step < 9; ++step) REQUIRE(Await(job.Push(1, step, 1)).ok());
  // In two frames.
  REQUIRE(Await(job.Send(job.PartOf(2, 5, 0, 3e38f, 2))).ok());
  REQUIRE(Await(job.Send(job.PartOf(2, 5, 1, 3e38f, 2))).ok());
  const uint64_t behind = job.server().position().sequence + 1;
  REQUIRE(Await(job.Push(3, 2, -7)).ok());

  const auto found = FindLargestPushes(FileSystem::Local(), job.directory.path(), 1, UINT64_MAX, /*count=*/2);
  REQUIRE(found.ok());
  CHECK(found->pushes == 11);
  CHECK(found->median_norm == Approx(root));
  REQUIRE(found->largest.size() == 2);
  CHECK(found->largest[0].worker == WorkerId(2));
  CHECK(found->largest[0].incarnation == job.IncarnationOf(2));
  CHECK(found->largest[0].step == 5);
  CHECK(found->largest[0].norm == Approx(3e38 * root));
  CHECK(found->largest[1].worker == WorkerId(3));
  CHECK(found->largest[1].norm == Approx(7 * root));

  // Only what lies between.
  const auto later = FindLargestPushes(FileSystem::Local(), job.directory.path(), behind, UINT64_MAX, 5);
  REQUIRE(later.ok());
  CHECK(later->pushes == 1);
  const auto earlier = FindLargestPushes(FileSystem::Local(), job.directory.path(), 1, 9, 5);
  REQUIRE(earlier.ok());
  CHECK(earlier->pushes == 9);
  CHECK(earlier->largest.size() == 5);
}

TEST_CASE("a log that is not there has no pushes", "[recovery]") {
  const TempDir directory;
  const auto found = FindLargestPushes(FileSystem::Local(), directory.path() + "/none", 1, UINT64_MAX, 3);
  REQUIRE(found.ok());
  CHECK(found->pushes == 0);
  CHECK(found->largest.empty());
}

}  // namespace recon
