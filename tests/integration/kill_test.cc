#include <signal.h>

#include <algorithm>
#include <filesystem>
#include <iterator>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_join.h"
#include "catch2/catch.hpp"
#include "common/base/clock.h"
#include "common/snapshot/snapshot_reader.h"
#include "common/storage/local_store.h"
#include "tests/integration/completed_once.h"
#include "tests/integration/process_job.h"

namespace recon {
namespace {

constexpr uint64_t kSamples = 4000;

// Waits until the server has counted no push for so long.
bool NoPushFor(absl::Duration time, const ProcessJob& job) {
  uint64_t pushes = 0;
  absl::Time since = Now();
  return Eventually([&] {
    const uint64_t before = std::exchange(pushes, job.Status()->pushes());
    if (pushes != before) since = Now();
    return Now() - since >= time;
  });
}

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

}  // namespace

TEST_CASE("a worker killed and replaced, a server killed and restarted: every sample once, and it learns",
          "[kill]") {
  struct Case {
    std::string sync;
    std::vector<std::string> flags;
  };
  for (const Case& c :
       {Case{"asp", {}}, Case{"ssp:2", {}}, Case{"bsp", {}}, Case{"local:4", {}},
        Case{"bsp", {"--sync-period", "no_decay=3"}}, Case{"local:4", {"--fragments", "2"}}}) {
    INFO(c.sync << " " << absl::StrJoin(c.flags, " "));
    std::vector<std::string> flags = JobFlags(c.sync, 8);
    flags.insert(flags.end(), c.flags.begin(), c.flags.end());
    ProcessJob job(flags);
    REQUIRE(job.StartServer());
    auto one = job.StartWorker("one");
    auto two = job.StartWorker("two");
    REQUIRE(job.SamplesReach(kSamples));
    two->Kill();
    two = job.StartWorker("two");
    REQUIRE(job.SamplesReach(3 * kSamples));
    job.server().Kill();
    REQUIRE(job.StartServer());
    REQUIRE(job.Finished());
    CHECK(one->Wait(absl::Seconds(30)) == 0);
    CHECK(two->Wait(absl::Seconds(30)) == 0);
    CHECK(CompletedOnce(*job.Completions(), 8, kSamples));
    const StatusReply status = *job.Status();
    CHECK(status.evaluations_size() == 8);
    CHECK(status.evaluations(7).accuracy() > 0.9);
    CHECK(status.restored_generation() > 0);
    CHECK(status.recover_ms() > 0);
    job.server().Signal(SIGTERM);
    CHECK(job.server().Wait(absl::Seconds(30)) == 0);
  }
}

TEST_CASE("a policy set live outlives the server, until its flags say something else", "[kill]") {
  ProcessJob job(JobFlags("asp", 12));
  REQUIRE(job.StartServer());
  auto one = job.StartWorker("one");
  auto two = job.StartWorker("two");
  const auto samples_reach = [&](uint64_t samples) {
    const bool reached = job.SamplesReach(samples);
    UNSCOPED_INFO("server:\n" << job.ServerLog() << "one:\n" << one->output() << "two:\n" << two->output());
    return reached;
  };
  REQUIRE(samples_reach(kSamples));
  std::string output;
  REQUIRE(RunProgram({"reconctl", "policy", "set", "--server", job.address(), "--sync", "local:4"},
                     &output) == 0);
  CHECK(absl::StrContains(output, "policy bsp of 4 local steps"));
  REQUIRE(samples_reach(2 * kSamples));
  job.server().Kill();
  REQUIRE(job.StartServer());
  REQUIRE(samples_reach(4 * kSamples));
  CHECK(job.Status()->job().policy().sync() == "local:4");
  job.server().Kill();
  job.set_server_flags(JobFlags("ssp:3", 12));
  REQUIRE(job.StartServer());
  REQUIRE(samples_reach(6 * kSamples));
  CHECK(job.Status()->job().policy().sync() == "ssp:3");
  // It does not come back with the flags it was set beside.
  job.server().Kill();
  job.set_server_flags(JobFlags("asp", 12));
  REQUIRE(job.StartServer());
  REQUIRE(samples_reach(8 * kSamples));
  CHECK(job.Status()->job().policy().sync() == "asp");
  REQUIRE(job.Finished());
  CHECK(one->Wait(absl::Seconds(30)) == 0);
  CHECK(two->Wait(absl::Seconds(30)) == 0);
  CHECK(CompletedOnce(*job.Completions(), 12, kSamples));
  CHECK(job.Status()->evaluations(11).accuracy() > 0.9);
}

TEST_CASE("a policy set live outlives the control database", "[kill]") {
  std::vector<std::string> flags = JobFlags("asp", 12);
  *std::next(std::find(flags.begin(), flags.end(), "--snapshot-interval")) = "1h";
  ProcessJob job(flags);
  REQUIRE(job.StartServer());
  auto one = job.StartWorker("one");
  auto two = job.StartWorker("two");
  REQUIRE(job.SamplesReach(kSamples));
  for (const char* sync : {"ssp:5", "ssp:3"}) {
    std::string output;
    REQUIRE(RunProgram({"reconctl", "policy", "set", "--server", job.address(), "--sync", sync}, &output) ==
            0);
  }
  REQUIRE(job.SamplesReach(2 * kSamples));
  // Once only the push log has it, then the snapshot that was taken after that start.
  for (const uint64_t samples : {4 * kSamples, 6 * kSamples}) {
    job.server().Kill();
    std::filesystem::remove_all(job.data() + "/control");
    REQUIRE(job.StartServer());
    REQUIRE(job.SamplesReach(samples));
    CHECK(job.Status()->job().policy().sync() == "ssp:3");
  }
  const std::string log = job.ServerLog();
  const size_t anew = log.find("with the policy that the push log has");
  CHECK(anew != std::string::npos);
  CHECK(log.find("with the policy that the push log has", anew + 1) == std::string::npos);
  REQUIRE(job.Finished());
  INFO(job.ServerLog() << job.WorkerLog("one") << job.WorkerLog("two"));
  CHECK(one->Wait(absl::Seconds(30)) == 0);
  CHECK(two->Wait(absl::Seconds(30)) == 0);
  CHECK(CompletedOnce(*job.Completions(), 12, kSamples));
}

TEST_CASE("BSP goes on when a worker is killed for good", "[kill]") {
  ProcessJob job(JobFlags("bsp", 4));
  REQUIRE(job.StartServer());
  auto one = job.StartWorker("one");
  auto two = job.StartWorker("two");
  REQUIRE(job.SamplesReach(kSamples));
  two->Kill();
  REQUIRE(job.Finished());
  CHECK(one->Wait(absl::Seconds(30)) == 0);
  CHECK(CompletedOnce(*job.Completions(), 4, kSamples));
}

TEST_CASE("a worker that was stopped for longer than the eviction comes back and goes on", "[kill]") {
  for (const std::string sync : {"asp", "bsp"}) {
    INFO(sync);
    ProcessJob job(JobFlags(sync, 12));
    REQUIRE(job.StartServer());
    auto one = job.StartWorker("one");
    auto two = job.StartWorker("two");
    REQUIRE(job.SamplesReach(kSamples));
    two->Signal(SIGSTOP);
    REQUIRE(Eventually([&] {
      const auto status = job.Status();
      for (const MemberStatus& member : status->members()) {
        if (member.name() == "two" && member.state() == MEMBER_GONE) return true;
      }
      return false;
    }));
    two->Signal(SIGCONT);
    REQUIRE(job.Finished());
    CHECK(one->Wait(absl::Seconds(30)) == 0);
    const int exit_code = two->Wait(absl::Seconds(30));
    INFO(two->output());
    CHECK(exit_code == 0);
    CHECK(CompletedOnce(*job.Completions(), 12, kSamples));
  }
}

TEST_CASE("the server is killed again and again under load, and nothing completed is lost or doubled",
          "[kill]") {
  // Splits of 100 batches: a worker could get far ahead of a push that is trying again.
  ProcessJob job(JobFlags("asp", 40, /*split_samples=*/2000));
  REQUIRE(job.StartServer());
  auto one = job.StartWorker("one");
  auto two = job.StartWorker("two");
  uint64_t completed = 0;
  for (int round = 1; round <= 5; ++round) {
    REQUIRE(job.SamplesReach(completed + 3000));
    completed = job.Status()->samples_completed();
    job.server().Kill();
    REQUIRE(job.StartServer());
    CHECK(job.Status()->samples_completed() >= completed);
  }
  REQUIRE(job.Finished());
  one->Wait(absl::Seconds(30));
  two->Wait(absl::Seconds(30));
  INFO(one->output() << two->output());
  CHECK(one->Wait(absl::Seconds(30)) == 0);
  CHECK(two->Wait(absl::Seconds(30)) == 0);
  CHECK(CompletedOnce(*job.Completions(), 40, kSamples));
}

TEST_CASE("SIGTERM: a worker leaves in good order, a server drains with a snapshot", "[kill]") {
  ProcessJob job(JobFlags("asp", 1000));
  REQUIRE(job.StartServer());
  auto one = job.StartWorker("one");
  auto two = job.StartWorker("two");
  REQUIRE(job.SamplesReach(1000));
  two->Signal(SIGTERM);
  CHECK(two->Wait(absl::Seconds(30)) == 0);
  CHECK(Eventually([&] { return absl::StrContains(job.ServerLog(), "worker two left (stopped)"); }));
  job.server().Signal(SIGTERM);
  CHECK(job.server().Wait(absl::Seconds(30)) == 0);
  CHECK(absl::StrContains(job.ServerLog(), "published (drain)"));
  one->Signal(SIGTERM);  // While the server is away.
  CHECK(one->Wait(absl::Seconds(30)) == 0);
}

TEST_CASE("a damaged newest snapshot is passed over, loudly", "[kill]") {
  ProcessJob job(JobFlags("asp", 1000));
  REQUIRE(job.StartServer());
  auto one = job.StartWorker("one");
  auto two = job.StartWorker("two");
  REQUIRE(Eventually([&] {
    const auto status = job.Status();
    return status.ok() && status->snapshot().generation() >= 3;
  }));
  job.server().Kill();
  const auto store = *LocalStore::Open(job.snapshots(), /*writer=*/false);
  const uint64_t newest = SnapshotReader(store.get()).List()->back().value();
  const Manifest manifest = *SnapshotReader(store.get()).ReadManifest(Generation(newest));
  const std::string pack = job.snapshots() + "/" + manifest.packs(0).name();
  std::string bytes = ReadWholeFile(pack);
  bytes[bytes.size() / 2] = static_cast<char>(bytes[bytes.size() / 2] ^ 1);
  WriteWholeFile(pack, bytes);
  REQUIRE(job.StartServer());
  CHECK(job.Status()->restored_generation() == newest - 1);
  CHECK(absl::StrContains(job.ServerLog(), absl::StrCat("SNAPSHOT ", newest, " IS DAMAGED")));
}

TEST_CASE("the control database can be lost or damaged: same answers from snapshots and log", "[kill]") {
  const auto [sync, durability, damaged] =
      GENERATE(table<std::string, std::string, bool>({{"asp", "log", false}, {"bsp", "sync", true}}));
  INFO(sync << ", " << durability << ", damaged " << damaged);
  std::vector<std::string> flags = JobFlags(sync, 8);
  flags.insert(flags.end(), {"--durability", durability});
  ProcessJob job(flags);
  REQUIRE(job.StartServer());
  auto one = job.StartWorker("one");
  REQUIRE(Eventually([&] { return absl::StrContains(job.ServerLog(), "worker one"); }));
  auto two = job.StartWorker("two");
  REQUIRE(job.SamplesReach(kSamples + 400));
  one->Kill();
  two->Kill();
  const std::string completions = job.Completions()->SerializeAsString();
  const StatusReply before = *job.Status();
  job.server().Kill();
  const std::string control = job.data() + "/control";
  if (damaged) {
    for (const auto& entry : std::filesystem::directory_iterator(control)) {
      if (absl::StartsWith(entry.path().filename().string(), "MANIFEST"))
        WriteWholeFile(entry.path(), "rubbish");
    }
  } else {
    std::filesystem::remove_all(control);
  }
  REQUIRE(job.StartServer());
  CHECK(absl::StrContains(job.ServerLog(), "THE CONTROL DATABASE IS DAMAGED") == damaged);
  CHECK(absl::StrContains(job.ServerLog(), "filled with 2 workers"));
  CHECK(job.Completions()->SerializeAsString() == completions);
  const StatusReply after = *job.Status();
  CHECK(after.samples_completed() == before.samples_completed());
  CHECK(after.evaluations_size() == before.evaluations_size());
  CHECK(after.cluster_epoch() > before.cluster_epoch());
  // In the other order: the number goes with the name.
  two = job.StartWorker("two");
  REQUIRE(Eventually([&] { return job.Status()->members_size() == 1; }));
  CHECK(job.Status()->members(0).worker() == 2);
  one = job.StartWorker("one");
  REQUIRE(job.Finished());
  CHECK(CompletedOnce(*job.Completions(), 8, kSamples));
}

TEST_CASE("snapshots alone are enough to go on from, each split once", "[kill]") {
  ProcessJob job(JobFlags("asp", 6));
  REQUIRE(job.StartServer());
  auto one = job.StartWorker("one");
  auto two = job.StartWorker("two");
  REQUIRE(job.SamplesReach(kSamples + 400));
  job.server().Kill();
  std::filesystem::remove_all(job.data() + "/control");
  std::filesystem::remove_all(job.data() + "/log");
  REQUIRE(job.StartServer());
  // The workers are still there, with leases of before.
  REQUIRE(job.Finished());
  CHECK(CompletedOnce(*job.Completions(), 6, kSamples));
}

TEST_CASE("a worker that joins takes parameters from the snapshot and what has changed since from the server",
          "[kill]") {
  std::vector<std::string> flags = JobFlags("asp", 1000);
  // None but the one asked for: another, taken at the wrong moment, would be there to read.
  *std::find(flags.begin(), flags.end(), "200ms") = "1h";  // Of --snapshot-interval.
  ProcessJob job(flags);
  REQUIRE(job.StartServer());
  auto zero = job.StartWorker("zero");
  auto one = job.StartWorker("one");
  REQUIRE(job.SamplesReach(kSamples));
  zero->Kill();
  one->Kill();
  // What they had sent may still be on its way to the lanes.
  REQUIRE(NoPushFor(absl::Milliseconds(300), job));
  REQUIRE(ControlClient(*ConnectTo(job.address(), {})).Snapshot().ok());
  auto two = job.StartWorker("two", {"--parameters-from", "store"});
  REQUIRE(Eventually([&] { return absl::StrContains(two->output(), "that changed since from the server"); }));
  INFO(two->output());
  CHECK(absl::StrContains(two->output(), ", 0 bytes that changed since"));
  REQUIRE(job.SamplesReach(2 * kSamples));
  auto later = job.StartWorker("later", {"--parameters-from", "store"});
  REQUIRE(
      Eventually([&] { return absl::StrContains(later->output(), "that changed since from the server"); }));
  CHECK_FALSE(absl::StrContains(later->output(), ", 0 bytes that changed since"));
  // Nothing there to read: the server has everything, too.
  std::filesystem::rename(job.snapshots() + "/packs", job.snapshots() + "/elsewhere");
  auto three = job.StartWorker("three", {"--parameters-from", "store"});
  CHECK(
      Eventually([&] { return absl::StrContains(three->output(), "all parameters come from the server"); }));
}

TEST_CASE("a worker that joins takes parameters from other workers while these wait, or are dead", "[kill]") {
  std::vector<std::string> flags = JobFlags("bsp", 1000);
  *std::find(flags.begin(), flags.end(), "1500ms") = "5s";  // Of --evict-after.
  flags.insert(flags.end(), {"--suspect-after", "4s"});
  ProcessJob job(flags);
  REQUIRE(job.StartServer());
  auto zero = job.StartWorker("zero");
  auto one = job.StartWorker("one", {"--serve-parameters", "127.0.0.1:0"});
  REQUIRE(job.SamplesReach(kSamples));
  // The other one waits for it, until it is given up: nothing changes meanwhile.
  zero->Kill();
  REQUIRE(NoPushFor(absl::Milliseconds(200), job));
  auto two = job.StartWorker("two", {"--parameters-from", "workers"});
  REQUIRE(Eventually([&] { return absl::StrContains(two->output(), "that differ from the server"); }));
  INFO(two->output());
  CHECK(absl::StrContains(two->output(), " bytes from 1 other workers, 0 bytes that differ"));
  REQUIRE(job.SamplesReach(2 * kSamples));
  one->Kill();
  auto three = job.StartWorker("three", {"--parameters-from", "workers"});
  CHECK(
      Eventually([&] { return absl::StrContains(three->output(), "all parameters come from the server"); }));
  REQUIRE(job.SamplesReach(3 * kSamples));
}

#if defined(RECON_FAULT_POINTS)
TEST_CASE("dying between any two steps of a snapshot loses none that was published", "[kill]") {
  for (const char* point : {"store.append", "store.before_sync", "store.before_rename",
                            "store.before_directory_sync", "publish.before_manifest", "publish.before_link",
                            "publish.after_link", "collect.after_mark", "collect.after_manifest"}) {
    for (const int occurrence : {1, 2}) {
      INFO(point << ", occurrence " << occurrence);
      ProcessJob job({"--data-epochs", "1000", "--snapshot-interval", "50ms", "--snapshot-keep", "2",
                      "--split-samples", "200", "--batch", "20"});
      REQUIRE(job.StartServer({absl::StrCat("RECON_FAULT=", point, ":", occurrence, "=kill")}));
      auto worker = job.StartWorker("one");
      REQUIRE(job.server().Wait(absl::Seconds(60)) == 128 + SIGKILL);
      REQUIRE(job.StartServer());
      REQUIRE(job.SamplesReach(400));
      CHECK_FALSE(absl::StrContains(job.ServerLog(), "DAMAGED"));
      worker->Kill();
      job.server().Signal(SIGTERM);
      CHECK(job.server().Wait(absl::Seconds(30)) == 0);
      // No leftovers and nothing gone: the packs there are those that manifests name.
      const auto store = *LocalStore::Open(job.snapshots(), /*writer=*/false);
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
