#include <signal.h>

#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_join.h"
#include "catch2/catch.hpp"
#include "common/base/hash.h"
#include "common/snapshot/manifest.h"
#include "common/snapshot/snapshot_reader.h"
#include "common/storage/local_store.h"
#include "tests/integration/completed_once.h"
#include "tests/integration/servers_job.h"

namespace recon {
namespace {

constexpr uint64_t kSamples = 4000;
// Five shards: four of weights, one of biases.
const std::vector<std::string> kWideModel = {"--model", "mlp:16-90000-4"};

std::vector<std::string> JobFlags(const std::string& sync, int epochs, int workers_min = 2,
                                  const std::string& rate = "0.1") {
  return {"--sync",
          sync,
          "--data-epochs",
          absl::StrCat(epochs),
          "--split-samples",
          "200",
          "--batch",
          "20",
          "--optimizer",
          "sgd",
          "--learning-rate",
          rate,
          "--workers-min",
          absl::StrCat(workers_min),
          "--snapshot-interval",
          "200ms",
          "--evict-after",
          "1500ms",
          "--replace-after",
          "500ms"};
}

}  // namespace

TEST_CASE("each of several servers, and the head, killed and restarted: every sample once, and it learns",
          "[servers]") {
  struct Case {
    std::string sync;
    std::vector<std::string> flags;  // Of pushes that have not all shards.
  };
  for (const Case& c :
       {Case{"asp", {}}, Case{"ssp:2", {}}, Case{"bsp", {}}, Case{"bsp", {"--quorum", "1", "--grace", "5ms"}},
        Case{"bsp", {"--sync-period", "default=3"}}, Case{"local:4", {"--fragments", "2"}}}) {
    INFO(c.sync << " " << absl::StrJoin(c.flags, " "));
    // So wide a model goes astray at a rate that suits the other, and costs a hundred times as much.
    const bool wide = !c.flags.empty();
    const int epochs = wide ? 4 : 8;
    std::vector<std::string> flags = JobFlags(c.sync, epochs, 2, wide ? "0.003" : "0.1");
    flags.insert(flags.end(), c.flags.begin(), c.flags.end());
    ServersJob job(3, flags);
    REQUIRE(job.StartAll());
    const std::vector<std::string> model = wide ? kWideModel : std::vector<std::string>();
    auto one = job.StartWorker("one", model);
    auto two = job.StartWorker("two", model);
    const uint64_t eighth = static_cast<uint64_t>(epochs) * kSamples / 8;
    uint64_t samples = eighth;
    for (const int server : {1, 0, 2}) {
      INFO("server " << server << " after " << samples << " samples");
      REQUIRE(job.SamplesReach(samples));
      job.process(server).Kill();
      REQUIRE(job.Start(server));
      samples += 2 * eighth;
    }
    REQUIRE(job.Finished());
    CHECK(one->Wait(absl::Seconds(30)) == 0);
    CHECK(two->Wait(absl::Seconds(30)) == 0);
    CHECK(CompletedOnce(*job.Completions(), epochs, kSamples));
    const StatusReply status = *job.Status();
    REQUIRE(status.evaluations_size() == epochs);
    CHECK(status.evaluations(epochs - 1).accuracy() > (wide ? 0.8 : 0.9));  // Of four classes.
    // Workers that ask again while a server is away are no news.
    CHECK_FALSE(absl::StrContains(job.ServerLog(), " refused: "));
    REQUIRE(job.Drain());
  }
}

TEST_CASE("one server or several: a synchronous job comes to the same bits", "[servers]") {
  std::string first;
  for (const int servers : {1, 2, 4}) {
    INFO(servers << " servers");
    ServersJob job(servers, JobFlags("bsp", 1, /*workers_min=*/1));
    REQUIRE(job.StartAll());
    std::vector<std::string> flags = kWideModel;
    flags.insert(flags.end(), {"--codec", "fp32", "--pull-codec", "fp32"});
    auto worker = job.StartWorker("two", flags);
    REQUIRE(job.Finished());
    CHECK(worker->Wait(absl::Seconds(30)) == 0);
    const std::string root = job.StateRoot();
    REQUIRE(!root.empty());
    if (first.empty()) first = root;
    CHECK(root == first);
    CHECK(job.Newest().servers_size() == (servers == 1 ? 0 : servers));
    REQUIRE(job.Drain());
  }
}

TEST_CASE(
    "a state of N servers goes on with M, a server that is killed comes back, one that is lost is rebuilt",
    "[servers]") {
  ServersJob job(3, JobFlags("asp", 1000));
  REQUIRE(job.StartAll());
  auto worker = job.StartWorker("one", kWideModel);
  auto other = job.StartWorker("two", kWideModel);
  REQUIRE(job.SamplesReach(kSamples / 4));
  worker->Signal(SIGTERM);
  other->Signal(SIGTERM);
  CHECK(worker->Wait(absl::Seconds(30)) == 0);
  CHECK(other->Wait(absl::Seconds(30)) == 0);
  // Nobody pushes from here on.
  const std::string root = job.StateRoot();
  REQUIRE(!root.empty());

  // Killed: from its log, whose pushes are not all in a snapshot of its own.
  job.KillAll();
  REQUIRE(job.StartAll());
  CHECK(job.StateRoot() == root);
  job.process(1).Kill();
  REQUIRE(job.Start(1));
  CHECK(job.StateRoot() == root);

  // Lost with its data: from the newest snapshot.
  job.process(2).Kill();
  std::filesystem::remove_all(job.DataOf(2));
  REQUIRE(job.Start(2));
  CHECK(job.StateRoot() == root);
  REQUIRE(job.AllReady());
  INFO(job.ServerLog());
  // When it gets the place, and without what: all of that was in the snapshot.
  // (Places are given in the order of coming: it may have been that of server 1.)
  CHECK(absl::StrContains(job.ServerLog(), " takes the place of server "));
  CHECK(absl::StrContains(
      job.ServerLog(),
      " takes its place, from the newest snapshot, without what its log has beyond that: 0 records"));

  // Other numbers of servers, the old ones' data directories among them.
  for (const int servers : {2, 1, 4}) {
    INFO(servers << " servers");
    REQUIRE(job.Drain());
    job.SetServers(servers);
    REQUIRE(job.StartAll());
    CHECK(job.StateRoot() == root);
    CHECK(job.Newest().servers_size() == (servers == 1 ? 0 : servers));
  }
  // And training goes on.
  const uint64_t before = job.Status()->samples_completed();
  worker = job.StartWorker("one", kWideModel);
  other = job.StartWorker("two", kWideModel);
  CHECK(job.SamplesReach(before + 400));
}

TEST_CASE("the head says that a server with a copy of another's data takes its place", "[servers]") {
  ServersJob job(2, JobFlags("asp", 100'000, 1));
  REQUIRE(job.StartAll());
  const auto worker = job.StartWorker("one");
  REQUIRE(job.SamplesReach(1000));
  job.process(1).Kill();
  const std::string copy = job.directory() / "copy";
  std::filesystem::copy(job.DataOf(1), copy, std::filesystem::copy_options::recursive);
  std::filesystem::permissions(copy, std::filesystem::perms::owner_all);
  REQUIRE(job.Start(1));
  REQUIRE(job.SamplesReach(job.Status()->samples_completed() + 1000));
  CHECK_FALSE(absl::StrContains(job.ServerLog(), "has a copy of the other's --data"));
  Process other({"recon-server", "--join", job.address(), "--listen", "127.0.0.1:0", "--data", copy},
                job.directory() / "copy.log");
  CHECK(Eventually([&] { return absl::StrContains(job.ServerLog(), "has a copy of the other's --data"); }));
  other.Kill();
  CHECK(Eventually([&] { return job.Status().ok(); }));
  CHECK(job.SamplesReach(job.Status()->samples_completed() + 1000));
}

TEST_CASE("servers say what is wrong with how they are started", "[servers]") {
  ServersJob job(2, JobFlags("asp", 1000));
  REQUIRE(job.Start(0));
  std::string output;
  const auto join = [&](std::vector<std::string> more) {
    std::vector<std::string> arguments = {"recon-server", "--join", job.address(), "--listen", "127.0.0.1:0"};
    arguments.insert(arguments.end(), more.begin(), more.end());
    return RunProgram(arguments, &output);
  };
  CHECK(join({"--data", job.DataOf(1), "--sync", "bsp"}) == 2);
  CHECK(absl::StrContains(output, "--sync is the head's to say"));
  CHECK(join({"--data", job.DataOf(1), "--advertise", "nowhere"}) == 2);
  CHECK(absl::StrContains(output, "--advertise nowhere"));
  REQUIRE(job.Start(1));
  auto worker = job.StartWorker("one", kWideModel);
  auto other = job.StartWorker("two", kWideModel);
  REQUIRE(job.SamplesReach(200));
  // A job's data is not another's.
  ServersJob another(2, JobFlags("asp", 1000));
  REQUIRE(another.Start(0));
  job.process(1).Kill();
  CHECK(RunProgram(
            {"recon-server", "--join", another.address(), "--listen", "127.0.0.1:0", "--data", job.DataOf(1)},
            &output) == 1);
  CHECK(absl::StrContains(output, "its --data is of job"));
  // Nor a server's that of a head.
  CHECK(RunProgram({"recon-server", "--listen", "127.0.0.1:0", "--data", job.DataOf(1)}, &output) == 1);
  CHECK(absl::StrContains(output, "is that of a server with --join"));
  // Another number of servers while logs go beyond the snapshot.
  REQUIRE(job.Start(1));
  REQUIRE(job.SamplesReach(job.Status()->samples_completed() + 400));
  job.KillAll();
  CHECK(RunProgram({"recon-server", "--listen", "127.0.0.1:0", "--data", job.data(), "--optimizer", "sgd",
                    "--servers", "3"},
                   &output) == 1);
  INFO(output);
  CHECK(absl::StrContains(output, "start with --servers 2, drain"));
}

}  // namespace recon
