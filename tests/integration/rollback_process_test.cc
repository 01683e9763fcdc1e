// A way back, as operators see it: reconctl, exit codes, and servers that are killed meanwhile.

#include <random>

#include "absl/strings/match.h"
#include "catch2/catch.hpp"
#include "common/base/sleep.h"
#include "common/snapshot/snapshot_reader.h"
#include "common/storage/local_store.h"
#include "tests/integration/completed_once.h"
#include "tests/integration/process_job.h"

namespace recon {
namespace {

constexpr uint64_t kSamples = 4000;

int Ctl(std::vector<std::string> arguments, std::string* output) {
  arguments.insert(arguments.begin(), "reconctl");
  return RunProgram(arguments, output);
}

Manifest ManifestOf(const ProcessJob& job, uint64_t generation) {
  const auto store = *LocalStore::Open(job.snapshots(), /*writer=*/false);
  return *SnapshotReader(store.get()).ReadManifest(Generation(generation));
}

uint64_t Take(const ProcessJob& job) {
  return ControlClient(*ConnectTo(job.address(), {})).Snapshot()->generation();
}

}  // namespace

TEST_CASE("reconctl rollback and undo say what it will be, and return when the job goes on", "[rollback]") {
  ProcessJob job({"--data-epochs", "30", "--split-samples", "500", "--snapshot-interval", "1h", "--optimizer",
                  "sgd", "--learning-rate", "0.1"});
  REQUIRE(job.StartServer());
  const auto one = job.StartWorker("one", {"--step-ms", "2"});
  const auto two = job.StartWorker("two", {"--step-ms", "2"});
  REQUIRE(job.SamplesReach(kSamples));
  const uint64_t good = Take(job);
  REQUIRE(job.SamplesReach(2 * kSamples));
  const std::string server = job.address();
  std::string said;
  CHECK(Ctl({"rollback", absl::StrCat(good), "--dry-run", "--server", server}, &said) == 0);
  CHECK(
      absl::StrContains(said, absl::StrCat("rollback to snapshot ", good, ": begins with snapshot ", good)));
  CHECK(absl::StrContains(said, "samples are trained again"));
  CHECK(absl::StrContains(said, "it could go back to sequence"));
  CHECK_FALSE(job.Status()->has_rollback());
  CHECK(Ctl({"rollback", absl::StrCat(good), "--server", server}, &said) == 0);
  CHECK(
      absl::StrContains(said, absl::StrCat("done: snapshot ", good + 1, " has that state, cluster epoch 2")));
  CHECK(ManifestOf(job, good + 1).state_root() == ManifestOf(job, good).state_root());

  // To a record of the log behind that snapshot.
  const uint64_t begun = ManifestOf(job, good + 1).sequence();
  REQUIRE(job.SamplesReach(2 * kSamples));
  CHECK(Ctl({"rollback", "--to-sequence", absl::StrCat(begun + 3), "--server", server}, &said) == 0);
  INFO(said);
  CHECK(absl::StrContains(said, absl::StrCat("sequence ", begun + 3)));
  CHECK(absl::StrContains(said, "cluster epoch 3"));
  CHECK(job.Status()->rollback().history() == 2);

  REQUIRE(job.SamplesReach(2 * kSamples));
  const MemberStatus member = job.Status()->members(0);
  const std::string push = absl::StrCat(member.name(), ":", member.next_step() - 2);
  CHECK(Ctl({"undo", push, "--server", server}, &said) == 0);
  INFO(said);
  CHECK(absl::StrContains(said, absl::StrCat("without push ", push)));
  CHECK(absl::StrContains(said, "samples completed since stay completed"));
  CHECK(job.Status()->rollback().left_out_size() == 1);

  CHECK(Ctl({"undo", "nobody:3", "--server", server}, &said) == 5);
  CHECK(Ctl({"undo", "one", "--server", server}, &said) == 2);
  CHECK(absl::StrContains(said, "'one' is no push: expected WORKER:STEP"));
  CHECK(Ctl({"rollback", "--server", server}, &said) == 2);
  CHECK(Ctl({"rollback", "999", "--server", server}, &said) == 5);
  CHECK(Ctl({"status", "--server", server}, &said) == 0);
  CHECK(absl::StrContains(said, absl::StrCat("rollback   without push ", push)));
  CHECK(Ctl({"snapshot", "list", job.snapshots()}, &said) == 0);
  CHECK(absl::StrContains(said, "FINITE"));
  CHECK(one->Wait(absl::Seconds(120)) == 0);
  CHECK(two->Wait(absl::Seconds(120)) == 0);
  CHECK(CompletedOnce(*job.Completions(), 30, kSamples));
}

TEST_CASE("a server that is killed at any moment of a rollback comes back with it done", "[rollback]") {
  ProcessJob job({"--data-epochs", "60", "--split-samples", "500", "--snapshot-interval", "1h",
                  "--snapshot-keep", "100", "--optimizer", "sgd", "--learning-rate", "0.1"});
  REQUIRE(job.StartServer());
  const auto one = job.StartWorker("one", {"--step-ms", "1"});
  const auto two = job.StartWorker("two", {"--step-ms", "1"});
  std::mt19937 random(11);
  uint64_t samples = 0;
  for (int round = 1; round <= 6; ++round) {
    CAPTURE(round);
    REQUIRE(job.SamplesReach(samples + kSamples));
    const uint64_t good = Take(job);
    samples = job.Status()->samples_completed();
    REQUIRE(job.SamplesReach(samples + kSamples / 2));
    RollbackRequest request;
    request.set_generation(good);
    const auto planned = ControlClient(*ConnectTo(job.address(), {})).Rollback(request);
    REQUIRE(planned.ok());
    // From before the old server has stopped until after the new one has begun.
    Sleep(absl::Microseconds(random() % 250'000));
    job.server().Kill();
    REQUIRE(job.StartServer());
    const StatusReply status = *job.Status();
    CHECK(status.rollback().history() == static_cast<uint64_t>(round));
    CHECK(status.rollback().done());
    const Manifest begun = ManifestOf(job, status.rollback().published());
    CHECK(begun.reason() == "rollback");
    CHECK(begun.state_root() == ManifestOf(job, good).state_root());
  }
  CHECK(one->Wait(absl::Seconds(180)) == 0);
  CHECK(two->Wait(absl::Seconds(180)) == 0);
  CHECK(CompletedOnce(*job.Completions(), 60, kSamples));
}

TEST_CASE("training that diverges ends the server, if it shall, or after two rollbacks", "[rollback]") {
  for (const std::string action : {"stop", "rollback"}) {
    CAPTURE(action);
    ProcessJob job({"--data-epochs", "5", "--split-samples", "500", "--snapshot-interval", "1h",
                    "--optimizer", "sgd", "--learning-rate", "1e3", "--weight-decay", "1", "--on-divergence",
                    action});
    REQUIRE(job.StartServer());
    const auto worker = job.StartWorker("one");
    CHECK(job.server().Wait(absl::Seconds(60)) == 1);
    const std::string log = job.ServerLog();
    CHECK(absl::StrContains(log, "TRAINING DIVERGES: worker one: "));
    // Which pushes to look at: all are this worker's.
    CHECK(absl::StrContains(log, "those with the largest gradients, by their L2 norms: one:"));
    if (action == "stop") {
      CHECK(absl::StrContains(log, "recon-server: training has diverged: worker one: "));
      CHECK(absl::StrContains(log, "the last good snapshot is 1 (start with --on-divergence ignore"));
      CHECK(worker->Wait(absl::Seconds(30)) == 1);
    } else {
      CHECK(absl::StrContains(log, "training has diverged again, after 2 rollbacks: "));
      CHECK(worker->running());  // It waits for a server.
    }
    // And it can be gone back.
    job.set_server_flags(
        {"--data-epochs", "5", "--split-samples", "500", "--optimizer", "sgd", "--learning-rate", "0.1"});
    REQUIRE(job.StartServer());
    std::string said;
    CHECK(Ctl({"rollback", "1", "--server", job.address()}, &said) == 0);
    const auto other = job.StartWorker("two");
    CHECK(other->Wait(absl::Seconds(60)) == 0);
    CHECK(CompletedOnce(*job.Completions(), 5, kSamples));
  }
}

}  // namespace recon
