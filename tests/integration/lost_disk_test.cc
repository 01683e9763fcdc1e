// Jobs of three servers of which one loses its disk while the others live and are ahead of the newest
// snapshot.

#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "catch2/catch.hpp"
#include "common/rpc/client_channel.h"
#include "common/rpc/control_client.h"
#include "tests/integration/completed_once.h"
#include "tests/integration/servers_job.h"

namespace recon {
namespace {

constexpr uint64_t kSamples = 4000;
constexpr uint64_t kBatch = 20;
constexpr uint64_t kSplit = 200;
// That a worker may have begun at a cut, at most.
constexpr uint64_t kSplitsOpen = 3;
// Four shards: three of weights, one of biases.
const std::vector<std::string> kModel = {"--model", "mlp:16-9000-4"};

// A job whose snapshots are not on its head's disk, and come when they are asked for.
class LostDiskJob : public ServersJob {
 public:
  LostDiskJob(const std::string& sync, const std::string& after, int epochs, const TempDir& snapshots)
      : ServersJob(3, {"--sync",
                       sync,
                       "--after-lost-disk",
                       after,
                       "--data-epochs",
                       absl::StrCat(epochs),
                       "--split-samples",
                       absl::StrCat(kSplit),
                       "--batch",
                       absl::StrCat(kBatch),
                       "--optimizer",
                       "sgd",
                       "--learning-rate",
                       "0.001",
                       "--workers-min",
                       "1",
                       "--snapshot-interval",
                       "1h",
                       "--snapshot-dir",
                       snapshots.path(),
                       "--evict-after",
                       "1m",
                       "--replace-after",
                       "300ms"}),
        snapshots_(snapshots) {}

  void LoseDisk(int server) {
    process(server).Kill();
    std::filesystem::remove_all(server == 0 ? data() : DataOf(server));
    REQUIRE(Start(server));
  }
  Manifest Newest() const {
    const auto store = *LocalStore::Open(snapshots_.path(), /*writer=*/false);
    const SnapshotReader reader(store.get());
    return *reader.ReadManifest(reader.List()->back());
  }

 private:
  const TempDir& snapshots_;
};

void CheckUpdates(const Manifest& outcome, int epochs) {
  const uint64_t batches = static_cast<uint64_t>(epochs) * kSamples / kBatch;
  for (const ShardEntry& shard : outcome.shards()) {
    INFO("shard " << shard.shard());
    CHECK(shard.version() >= batches);
    CHECK(shard.version() < batches + kSplitsOpen * kSplit / kBatch);
  }
}

}  // namespace

TEST_CASE("after a lost disk all servers go back to one snapshot, and what came since is trained once more",
          "[lost_disk]") {
  struct Case {
    std::string sync;
    int lost;
  };
  for (const Case& c : {Case{"asp", 0}, Case{"asp", 2}, Case{"bsp", 1}, Case{"bsp", 0}}) {
    INFO(c.sync << ", server " << c.lost << " loses its disk");
    constexpr int kEpochs = 3;
    const TempDir snapshots;
    LostDiskJob job(c.sync, "together", kEpochs, snapshots);
    REQUIRE(job.StartAll());
    const auto worker = job.StartWorker("one", kModel);
    REQUIRE(job.SamplesReach(kSamples / 2));
    REQUIRE_FALSE(job.StateRoot().empty());
    const uint64_t generation = job.Newest().generation();
    REQUIRE(job.SamplesReach(kSamples * 3 / 2));
    job.LoseDisk(c.lost);
    REQUIRE(job.Finished());
    INFO(job.ServerLog());
    CHECK(worker->Wait(absl::Seconds(60)) == 0);
    CHECK(CompletedOnce(*job.Completions(), kEpochs, kSamples));
    // One update for each batch. Splits that were under way at the snapshot are trained from their begin, so
    // that it may have some of their batches once more: far fewer than came between it and the lost disk.
    const Manifest outcome = job.Newest();
    CHECK(outcome.history() == 1);
    CheckUpdates(outcome, kEpochs);
    // With the numbers, in the log and in the status.
    const std::string log = job.ServerLog();
    CHECK(absl::StrContains(log, absl::StrCat(" came back from snapshot ", generation, " alone, and ")));
    CHECK(absl::StrContains(log, "all go back to it (--after-lost-disk together)"));
    CHECK(absl::StrContains(log, "on all servers"));
    if (c.lost != 0) CHECK_FALSE(absl::StrContains(log, "and 0 splits"));
    CHECK_FALSE(absl::StrContains(log, "as is what 0 pushes"));
    const StatusReply status = *job.Status();
    CHECK(status.rollback().done());
    CHECK(absl::StartsWith(status.rollback().reason(),
                           absl::StrCat("to snapshot ", generation, ", after the lost disk of ")));
    CHECK(status.mixed_state().empty());
    for (int server = 0; server < 3; ++server) CHECK(job.process(server).running());
    REQUIRE(job.Drain());
  }
}

TEST_CASE(
    "each shard stays as new as it is with --after-lost-disk newest, and what differs is said with numbers",
    "[lost_disk]") {
  for (const int lost : {0, 2}) {
    INFO("server " << lost << " loses its disk");
    const TempDir snapshots;
    LostDiskJob job("asp", "newest", 100'000, snapshots);
    REQUIRE(job.StartAll());
    const auto worker = job.StartWorker("one", kModel);
    REQUIRE(job.SamplesReach(kSamples / 4));
    REQUIRE_FALSE(job.StateRoot().empty());
    REQUIRE(job.SamplesReach(kSamples));
    job.LoseDisk(lost);
    REQUIRE(Eventually([&] {
      const auto status = job.Status();
      return status.ok() && !status->mixed_state().empty();
    }));
    const std::string said = job.Status()->mixed_state();
    INFO(said);
    CHECK(absl::StrContains(said, " alone, and "));
    CHECK(
        absl::StrContains(said, lost == 0 ? "counts twice in " : "stay completed that were completed since"));
    CHECK(absl::StrContains(said, " of 4 shards"));
    CHECK_FALSE(absl::StrContains(said, " 0 pushes"));
    CHECK(absl::StrContains(job.ServerLog(), "SHARDS ARE OF DIFFERENT STATES: "));
    std::string output;
    CHECK(RunProgram({"reconctl", "status", "--server", job.address()}, &output) == 0);
    CHECK(absl::StrContains(output, "MIXED      "));
    CHECK(job.SamplesReach(job.Status()->samples_completed() + 400));
    CHECK(job.Status()->rollback().history() == 0);
  }
}

TEST_CASE("a job of three servers goes back to a snapshot while it runs", "[lost_disk]") {
  constexpr int kEpochs = 3;
  const TempDir snapshots;
  LostDiskJob job("asp", "together", kEpochs, snapshots);
  REQUIRE(job.StartAll());
  const auto worker = job.StartWorker("one", kModel);
  REQUIRE(job.SamplesReach(kSamples / 2));
  REQUIRE_FALSE(job.StateRoot().empty());
  const uint64_t generation = job.Newest().generation();
  REQUIRE(job.SamplesReach(kSamples));
  REQUIRE_FALSE(job.StateRoot().empty());
  std::string output;
  const int code =
      RunProgram({"reconctl", "rollback", absl::StrCat(generation), "--server", job.address()}, &output);
  INFO(output);
  CHECK(code == 0);
  CHECK(absl::StrContains(output, "done: snapshot "));
  CHECK(RunProgram({"reconctl", "rollback", "--to-sequence", "3", "--server", job.address()}, &output) != 0);
  CHECK(absl::StrContains(output, "goes back to a snapshot only"));
  REQUIRE(job.Finished());
  CHECK(worker->Wait(absl::Seconds(60)) == 0);
  CHECK(CompletedOnce(*job.Completions(), kEpochs, kSamples));
  CheckUpdates(job.Newest(), kEpochs);
  REQUIRE(job.Drain());
}

}  // namespace recon
