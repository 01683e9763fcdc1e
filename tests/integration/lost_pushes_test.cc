// A server that finds less than it has acknowledged: splits are completed whose pushes are gone.

#include <signal.h>

#include <filesystem>

#include "absl/strings/match.h"
#include "catch2/catch.hpp"
#include "tests/integration/completed_once.h"
#include "tests/integration/process_job.h"

namespace recon {

TEST_CASE("splits whose pushes are lost with the push log are done again, and others are not",
          "[lost_pushes]") {
  const std::string durability = GENERATE("log", "snapshot");
  const bool removed = GENERATE(false, true);
  if (durability == "snapshot" && removed) return;  // There is no log that could be removed.
  INFO("--durability " << durability << (removed ? ", its log removed" : ""));
  ProcessJob job(
      {"--data-epochs", "30", "--batch", "20", "--snapshot-interval", "1h", "--durability", durability});
  REQUIRE(job.StartServer());
  const auto worker = job.StartWorker("one", {"--step-ms", "1"});
  REQUIRE(job.SamplesReach(20'000));
  job.server().Kill();
  REQUIRE(job.server().Wait(absl::Seconds(30)) == 128 + SIGKILL);
  if (removed) REQUIRE(std::filesystem::remove_all(job.data() + "/log") > 0);
  REQUIRE(job.StartServer());
  // All that came after the snapshot that the job began with.
  const bool lost = removed || durability == "snapshot";
  CHECK(absl::StrContains(job.ServerLog(), "PUSHES ARE LOST: snapshot and push log end at sequence ") ==
        lost);
  const auto status = job.Status();
  REQUIRE(status.ok());
  CHECK((status->samples_completed() < 20'000) == lost);
  CHECK(job.Finished());
  const auto completions = job.Completions();
  REQUIRE(completions.ok());
  CHECK(CompletedOnce(*completions, 30, 4000));
  // A start that finds everything says nothing.
  job.server().Kill();
  REQUIRE(job.server().Wait(absl::Seconds(30)) == 128 + SIGKILL);
  const size_t said = job.ServerLog().size();
  REQUIRE(job.StartServer());
  CHECK_FALSE(absl::StrContains(job.ServerLog().substr(said), "PUSHES ARE LOST"));
}

}  // namespace recon
