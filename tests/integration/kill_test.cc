#include <signal.h>

#include <filesystem>
#include <set>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "catch2/catch.hpp"
#include "common/snapshot/snapshot_reader.h"
#include "common/storage/local_store.h"
#include "tests/integration/cluster.h"

namespace recon {
namespace {

constexpr uint64_t kSamples = 4000;

std::vector<std::string> JobFlags(const std::string& sync, int epochs, int split_samples = 200) {
  return {"--sync",
          sync,
          "--data-epochs",
          absl::StrCat(epochs),
          "--split-samples",
          absl::StrCat(split_samples),
          "--batch",
          "20",
          "--snapshot-interval",
          "200ms",
          "--evict-after",
          "1500ms",
          "--optimizer",
          "sgd",
          "--learning-rate",
          "0.1",
          "--workers-min",
          "2"};
}

void CheckCompletedOnce(const Cluster& cluster, uint32_t epochs) {
  const CompletionsReply reply = *cluster.Completions();
  std::vector<uint64_t> next(epochs, 0);
  for (const Completion& completion : reply.completions()) {
    if (completion.kind() != LEASE_TRAIN) continue;
    REQUIRE(completion.data_epoch() < epochs);
    CHECK(completion.begin() == next[completion.data_epoch()]);
    next[completion.data_epoch()] = completion.end();
  }
  for (const uint64_t end : next) CHECK(end == kSamples);
}

}  // namespace

TEST_CASE("a worker killed and replaced, a server killed and restarted: every sample once, and it learns",
          "[kill]") {
  for (const std::string sync : {"asp", "ssp:2", "bsp"}) {
    INFO(sync);
    Cluster cluster(JobFlags(sync, 8));
    REQUIRE(cluster.StartServer());
    auto one = cluster.StartWorker("one");
    auto two = cluster.StartWorker("two");
    REQUIRE(cluster.SamplesReach(kSamples));
    two->Kill();
    two = cluster.StartWorker("two");
    REQUIRE(cluster.SamplesReach(3 * kSamples));
    cluster.server().Kill();
    REQUIRE(cluster.StartServer());
    REQUIRE(cluster.Finished());
    CHECK(one->Wait(absl::Seconds(30)) == 0);
    CHECK(two->Wait(absl::Seconds(30)) == 0);
    CheckCompletedOnce(cluster, 8);
    const StatusReply status = *cluster.Status();
    CHECK(status.evaluations_size() == 8);
    CHECK(status.evaluations(7).accuracy() > 0.9);
    CHECK(status.restored_generation() > 0);
    CHECK(status.recover_ms() > 0);
    cluster.server().Signal(SIGTERM);
    CHECK(cluster.server().Wait(absl::Seconds(30)) == 0);
  }
}

TEST_CASE("BSP goes on when a worker is killed for good", "[kill]") {
  Cluster cluster(JobFlags("bsp", 4));
  REQUIRE(cluster.StartServer());
  auto one = cluster.StartWorker("one");
  auto two = cluster.StartWorker("two");
  REQUIRE(cluster.SamplesReach(kSamples));
  two->Kill();
  REQUIRE(cluster.Finished());
  CHECK(one->Wait(absl::Seconds(30)) == 0);
  CheckCompletedOnce(cluster, 4);
}

TEST_CASE("a worker that was stopped for longer than the eviction comes back and goes on", "[kill]") {
  for (const std::string sync : {"asp", "bsp"}) {
    INFO(sync);
    Cluster cluster(JobFlags(sync, 12));
    REQUIRE(cluster.StartServer());
    auto one = cluster.StartWorker("one");
    auto two = cluster.StartWorker("two");
    REQUIRE(cluster.SamplesReach(kSamples));
    two->Signal(SIGSTOP);
    REQUIRE(Eventually([&] {
      const auto status = cluster.Status();
      for (const MemberStatus& member : status->members()) {
        if (member.name() == "two" && member.state() == MEMBER_GONE) return true;
      }
      return false;
    }));
    two->Signal(SIGCONT);
    REQUIRE(cluster.Finished());
    CHECK(one->Wait(absl::Seconds(30)) == 0);
    const int exit_code = two->Wait(absl::Seconds(30));
    INFO(two->output());
    CHECK(exit_code == 0);
    CheckCompletedOnce(cluster, 12);
  }
}

TEST_CASE("the server is killed again and again under load, and nothing completed is lost or doubled",
          "[kill]") {
  // Splits of 100 batches: a worker could get far ahead of a push that is trying again.
  Cluster cluster(JobFlags("asp", 40, /*split_samples=*/2000));
  REQUIRE(cluster.StartServer());
  auto one = cluster.StartWorker("one");
  auto two = cluster.StartWorker("two");
  uint64_t completed = 0;
  for (int round = 1; round <= 5; ++round) {
    REQUIRE(cluster.SamplesReach(completed + 3000));
    completed = cluster.Status()->samples_completed();
    cluster.server().Kill();
    REQUIRE(cluster.StartServer());
    CHECK(cluster.Status()->samples_completed() >= completed);
  }
  REQUIRE(cluster.Finished());
  one->Wait(absl::Seconds(30));
  two->Wait(absl::Seconds(30));
  INFO(one->output() << two->output());
  CHECK(one->Wait(absl::Seconds(30)) == 0);
  CHECK(two->Wait(absl::Seconds(30)) == 0);
  CheckCompletedOnce(cluster, 40);
}

TEST_CASE("SIGTERM: a worker leaves in good order, a server drains with a snapshot", "[kill]") {
  Cluster cluster(JobFlags("asp", 1000));
  REQUIRE(cluster.StartServer());
  auto one = cluster.StartWorker("one");
  auto two = cluster.StartWorker("two");
  REQUIRE(cluster.SamplesReach(1000));
  two->Signal(SIGTERM);
  CHECK(two->Wait(absl::Seconds(30)) == 0);
  CHECK(Eventually([&] { return absl::StrContains(cluster.ServerLog(), "worker two left (stopped)"); }));
  cluster.server().Signal(SIGTERM);
  CHECK(cluster.server().Wait(absl::Seconds(30)) == 0);
  CHECK(absl::StrContains(cluster.ServerLog(), "published (drain)"));
  one->Signal(SIGTERM);  // While the server is away.
  CHECK(one->Wait(absl::Seconds(30)) == 0);
}

TEST_CASE("a damaged newest snapshot is passed over, loudly", "[kill]") {
  Cluster cluster(JobFlags("asp", 1000));
  REQUIRE(cluster.StartServer());
  auto one = cluster.StartWorker("one");
  auto two = cluster.StartWorker("two");
  REQUIRE(Eventually([&] {
    const auto status = cluster.Status();
    return status.ok() && status->snapshot().generation() >= 3;
  }));
  cluster.server().Kill();
  const auto store = *LocalStore::Open(cluster.snapshots(), /*writer=*/false);
  const uint64_t newest = SnapshotReader(store.get()).List()->back().value();
  const Manifest manifest = *SnapshotReader(store.get()).ReadManifest(Generation(newest));
  const std::string pack = cluster.snapshots() + "/" + manifest.packs(0).name();
  std::string bytes = ReadWholeFile(pack);
  bytes[bytes.size() / 2] = static_cast<char>(bytes[bytes.size() / 2] ^ 1);
  WriteWholeFile(pack, bytes);
  REQUIRE(cluster.StartServer());
  CHECK(cluster.Status()->restored_generation() == newest - 1);
  CHECK(absl::StrContains(cluster.ServerLog(), absl::StrCat("SNAPSHOT ", newest, " IS DAMAGED")));
}

TEST_CASE("the control database can be lost or damaged: same answers from snapshots and log", "[kill]") {
  const auto [sync, durability, damaged] =
      GENERATE(table<std::string, std::string, bool>({{"asp", "log", false}, {"bsp", "sync", true}}));
  INFO(sync << ", " << durability << ", damaged " << damaged);
  std::vector<std::string> flags = JobFlags(sync, 8);
  flags.insert(flags.end(), {"--durability", durability});
  Cluster cluster(flags);
  REQUIRE(cluster.StartServer());
  auto one = cluster.StartWorker("one");
  REQUIRE(Eventually([&] { return absl::StrContains(cluster.ServerLog(), "worker one"); }));
  auto two = cluster.StartWorker("two");
  REQUIRE(cluster.SamplesReach(kSamples + 400));
  one->Kill();
  two->Kill();
  const std::string completions = cluster.Completions()->SerializeAsString();
  const StatusReply before = *cluster.Status();
  cluster.server().Kill();
  const std::string control = cluster.data() + "/control";
  if (damaged) {
    for (const auto& entry : std::filesystem::directory_iterator(control)) {
      if (absl::StartsWith(entry.path().filename().string(), "MANIFEST"))
        WriteWholeFile(entry.path(), "rubbish");
    }
  } else {
    std::filesystem::remove_all(control);
  }
  REQUIRE(cluster.StartServer());
  CHECK(absl::StrContains(cluster.ServerLog(), "THE CONTROL DATABASE IS DAMAGED") == damaged);
  CHECK(absl::StrContains(cluster.ServerLog(), "filled with 2 workers"));
  CHECK(cluster.Completions()->SerializeAsString() == completions);
  const StatusReply after = *cluster.Status();
  CHECK(after.samples_completed() == before.samples_completed());
  CHECK(after.evaluations_size() == before.evaluations_size());
  CHECK(after.cluster_epoch() > before.cluster_epoch());
  // In the other order: the number goes with the name.
  two = cluster.StartWorker("two");
  REQUIRE(Eventually([&] { return cluster.Status()->members_size() == 1; }));
  CHECK(cluster.Status()->members(0).worker() == 2);
  one = cluster.StartWorker("one");
  REQUIRE(cluster.Finished());
  CheckCompletedOnce(cluster, 8);
}

TEST_CASE("snapshots alone are enough to go on from, each split once", "[kill]") {
  Cluster cluster(JobFlags("asp", 6));
  REQUIRE(cluster.StartServer());
  auto one = cluster.StartWorker("one");
  auto two = cluster.StartWorker("two");
  REQUIRE(cluster.SamplesReach(kSamples + 400));
  cluster.server().Kill();
  std::filesystem::remove_all(cluster.data() + "/control");
  std::filesystem::remove_all(cluster.data() + "/log");
  REQUIRE(cluster.StartServer());
  // The workers are still there, with leases of before.
  REQUIRE(cluster.Finished());
  CheckCompletedOnce(cluster, 6);
}

#if defined(RECON_FAULT_POINTS)
TEST_CASE("dying between any two steps of a snapshot loses none that was published", "[kill]") {
  for (const char* point : {"store.append", "store.before_sync", "store.before_rename",
                            "store.before_directory_sync", "publish.before_manifest", "publish.before_link",
                            "publish.after_link", "collect.after_mark", "collect.after_manifest"}) {
    for (const int occurrence : {1, 2, 7}) {
      INFO(point << ", occurrence " << occurrence);
      Cluster cluster({"--data-epochs", "1000", "--snapshot-interval", "50ms", "--snapshot-keep", "2",
                       "--split-samples", "200", "--batch", "20"});
      REQUIRE(cluster.StartServer({absl::StrCat("RECON_FAULT=", point, ":", occurrence, "=kill")}));
      auto worker = cluster.StartWorker("one");
      REQUIRE(cluster.server().Wait(absl::Seconds(60)) == 128 + SIGKILL);
      REQUIRE(cluster.StartServer());
      REQUIRE(cluster.SamplesReach(400));
      CHECK_FALSE(absl::StrContains(cluster.ServerLog(), "DAMAGED"));
      worker->Kill();
      cluster.server().Signal(SIGTERM);
      CHECK(cluster.server().Wait(absl::Seconds(30)) == 0);
      // No leftovers and nothing gone: the packs there are those that manifests name.
      const auto store = *LocalStore::Open(cluster.snapshots(), /*writer=*/false);
      const SnapshotReader reader(store.get());
      std::set<std::string> named;
      const std::vector<Generation> generations = *reader.List();
      for (const Generation generation : generations) {
        const Manifest manifest = *reader.ReadManifest(generation);
        for (const PackEntry& pack : manifest.packs()) named.insert(pack.name());
      }
      const std::vector<std::string> packs = *store->List("packs/");
      CHECK(std::set<std::string>(packs.begin(), packs.end()) == named);
      CHECK(store->List("retired/")->empty());
    }
  }
}
#endif

}  // namespace recon
