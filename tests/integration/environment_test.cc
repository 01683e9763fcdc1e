// What machines, containers and schedulers do to processes.

#include <signal.h>

#include "absl/strings/match.h"
#include "catch2/catch.hpp"
#include "common/base/clock.h"
#include "common/snapshot/snapshot_reader.h"
#include "common/storage/local_store.h"
#include "tests/integration/process_job.h"

namespace recon {
namespace {

std::vector<std::string> JobFlags(int epochs) {
  return {"--data-epochs", absl::StrCat(epochs), "--snapshot-interval", "1h"};
}

}  // namespace

TEST_CASE("no proxy of the user's stands between the processes of a job", "[environment]") {
  std::vector<std::string> proxies = {"no_proxy=", "no_grpc_proxy="};
  for (const char* name :
       {"http_proxy", "https_proxy", "grpc_proxy", "all_proxy", "HTTP_PROXY", "ALL_PROXY"}) {
    proxies.push_back(absl::StrCat(name, "=http://127.0.0.1:9"));
  }
  ProcessJob job(JobFlags(1));
  REQUIRE(job.StartServer(proxies));
  auto worker = job.StartWorker("two", {}, proxies);
  CHECK(job.Finished(absl::Seconds(30)));
  CHECK(worker->Wait(absl::Seconds(30)) == 0);
}

TEST_CASE("every signal by which a scheduler says that the end is near drains worker and server",
          "[environment]") {
  for (const int notice : {SIGTERM, SIGINT, SIGHUP, SIGUSR1, SIGUSR2, SIGXCPU}) {
    INFO("signal " << notice);
    ProcessJob job(JobFlags(100'000));
    REQUIRE(job.StartServer());
    auto worker = job.StartWorker("one");
    REQUIRE(job.SamplesReach(1000));
    worker->Signal(notice);
    CHECK(worker->Wait(absl::Seconds(30)) == 0);
    CHECK(absl::StrContains(job.ServerLog(), "worker one left (stopped)"));
    job.server().Signal(notice);
    CHECK(job.server().Wait(absl::Seconds(30)) == 0);
    CHECK(absl::StrContains(job.ServerLog(), "drained"));
  }
}

TEST_CASE("a second notice right after the first does not end the drain's snapshot", "[environment]") {
  ProcessJob job(JobFlags(100'000));
  REQUIRE(job.StartServer());
  auto worker = job.StartWorker("one");
  REQUIRE(job.SamplesReach(1000));
  job.server().Signal(SIGUSR1);
  REQUIRE(Eventually([&] { return absl::StrContains(job.ServerLog(), "draining"); }));
  job.server().Signal(SIGTERM);
  CHECK(job.server().Wait(absl::Seconds(30)) == 0);
  const auto store = *LocalStore::Open(job.snapshots(), /*writer=*/false);
  const SnapshotReader reader(store.get());
  CHECK(reader.ReadManifest(reader.List()->back())->reason() == "drain");
}

TEST_CASE("a second notice after the grace ends a worker that hangs, with a line that says so",
          "[environment]") {
  ProcessJob job(JobFlags(1));
  REQUIRE(job.StartServer());
  auto worker = job.StartWorker("one", {"--model", "mlp:16-24-4", "--step-ms", "3600000"});
  REQUIRE(Eventually([&] { return absl::StrContains(job.ServerLog(), "job started"); }));
  worker->Signal(SIGTERM);
  const int64_t first = MonotonicNanos();
  REQUIRE(Eventually([&] {
    worker->Signal(SIGTERM);
    return !worker->running();
  }));
  CHECK(MonotonicNanos() - first >= 5'000'000'000);
  CHECK(worker->Wait(absl::ZeroDuration()) == 128 + SIGTERM);
  CHECK(absl::StrContains(worker->output(), "another signal while this process was ending"));
}

}  // namespace recon
