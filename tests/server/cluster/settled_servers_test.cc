// Three servers of one job in which nothing breaks by chance: what snapshots and steps come to.

#include <memory>
#include <string>

#include "catch2/catch.hpp"
#include "tests/server/cluster/settled_job.h"

namespace recon {

TEST_CASE("a state of several servers that has not changed is not published again", "[cluster]") {
  SettledJob job(/*bound=*/-1);
  const uint64_t first = job.Snapshot("requested");
  const size_t published = job.Published();
  CHECK(job.Snapshot("drain") == first);
  CHECK(job.Snapshot("final") == first);
  CHECK(job.Published() == published);
  // Of another server's shards alone: the head has no record of it.
  job.Push(kOne, 0, {1});
  const uint64_t changed = job.Snapshot("drain");
  CHECK(changed > first);
  CHECK(job.Snapshot("requested") == changed);
  CHECK(job.Snapshot("drain") == changed);
  // Nor by those who come to the same state from their logs.
  job.RestartAll();
  CHECK(job.Snapshot("drain") == changed);
  job.Push(kOne, 1, {2});
  CHECK(job.Snapshot("requested") > changed);
  // What the job's course asks for is published whatever it has.
  const uint64_t recovered = job.Snapshot("recovered");
  CHECK(recovered > changed + 1);
  CHECK(job.Snapshot("requested") == recovered);
}

TEST_CASE("with a bound, too, a head that begins anew lets nobody begin far behind those who were there",
          "[cluster]") {
  for (const int bound : {0, 1, 3}) {
    INFO("bound " << bound);
    SettledJob job(bound);
    constexpr uint64_t kSteps = 9;
    for (uint64_t step = 0; step < kSteps; ++step) job.Push(kOne, step);
    job.AwaitFrontier(kSteps);
    job.RestartHead();
    // Before the one that was there has come back: it would wait for all that this one has to catch up with.
    CHECK(job.Register(kTwo, 0).step == kSteps);
    job.AwaitFrontier(kSteps);
    if (bound > 0) job.Push(kOne, kSteps);
  }
}

}  // namespace recon
