// Three servers of one job, of which one loses its disk while the others live.

#include <string>

#include "catch2/catch.hpp"
#include "tests/server/cluster/settled_job.h"

namespace recon {

TEST_CASE("whichever server loses its disk, all go back to the snapshot together", "[lost_disk]") {
  for (const int bound : {-1, 0}) {
    for (const uint32_t lost : {0U, 1U, 2U}) {
      INFO("bound " << bound << ", server " << lost << " loses its disk");
      SettledJob job(bound);
      job.PushNext(kOne);
      job.PushNext(kOne);
      job.Snapshot("requested");
      job.PushNext(kOne);
      REQUIRE(job.Has(3));
      job.LoseDisk(lost);
      // The third push counts on no shard any more.
      REQUIRE(job.Has(2));
      CHECK(job.history() == 1);
      job.PushNext(kOne);
      REQUIRE(job.Has(3));
      // And what came since is in snapshot and logs.
      job.RestartAll();
      REQUIRE(job.Has(3));
      CHECK(job.history() == 1);
    }
  }
}

TEST_CASE("servers that die while the job goes back come to the same state", "[lost_disk]") {
  for (const uint32_t lost : {0U, 2U}) {
    for (const uint32_t dies : {0U, 1U, 2U}) {
      INFO("server " << lost << " loses its disk, " << dies << " dies");
      SettledJob job(/*bound=*/-1);
      job.PushNext(kOne);
      job.Snapshot("requested");
      job.PushNext(kOne);
      job.LoseDisk(lost);
      for (int i = 0; i < 4; ++i) {
        job.AwaitMessages(7);
        job.Restart(dies);
      }
      REQUIRE(job.Has(1));
      CHECK(job.history() == 1);
      job.PushNext(kOne);
      job.RestartAll();
      REQUIRE(job.Has(2));
    }
  }
}

TEST_CASE("a server that loses its disk when nothing came after the snapshot takes nobody back",
          "[lost_disk]") {
  SettledJob job(/*bound=*/-1);
  job.PushNext(kOne);
  job.Snapshot("requested");
  job.LoseDisk(1);
  REQUIRE(job.Has(1));
  CHECK(job.history() == 0);
}

}  // namespace recon
