// A job that is done, and is started again.

#include <memory>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "catch2/catch.hpp"
#include "tests/integration/servers_job.h"

namespace recon {
namespace {

std::vector<std::string> Flags() {
  return {"--data-epochs", "2",   "--split-samples", "200", "--batch",         "20",
          "--optimizer",   "sgd", "--learning-rate", "0.1", "--snapshot-keep", "5"};
}

std::vector<Generation> Published(const ServersJob& job) {
  const auto store = *LocalStore::Open(job.snapshots(), /*writer=*/false);
  return *SnapshotReader(store.get()).List();
}

// The job is trained to its end, with some snapshots on the way.
void Train(ServersJob* job) {
  REQUIRE(job->StartAll());
  const auto worker = job->StartWorker("one");
  for (const uint64_t samples : {1000, 3000, 5000}) {
    REQUIRE(job->SamplesReach(samples));
    REQUIRE_FALSE(job->StateRoot().empty());
  }
  REQUIRE(job->Finished());
  CHECK(worker->Wait(absl::Seconds(60)) == 0);
  REQUIRE(job->Drain());
}

}  // namespace

TEST_CASE("a finished job that is started five times keeps its snapshots as they are", "[finished_job]") {
  for (const int servers : {1, 3}) {
    INFO(servers << " servers");
    ServersJob job(servers, Flags());
    Train(&job);
    const std::vector<Generation> published = Published(job);
    REQUIRE(published.size() >= 4);
    const std::string root = job.Newest().state_root();
    for (int i = 0; i < 5; ++i) {
      REQUIRE(job.StartAll());
      REQUIRE(job.AllReady());
      REQUIRE(job.Finished());
      REQUIRE(job.Drain());
    }
    CHECK(Published(job) == published);
    CHECK(job.Newest().state_root() == root);
  }
}

TEST_CASE("a finished job with --exit-when-done says so and ends, whoever else is there", "[finished_job]") {
  for (const int servers : {1, 3}) {
    INFO(servers << " servers");
    ServersJob job(servers, Flags());
    Train(&job);
    std::vector<std::string> flags = Flags();
    flags.insert(flags.end(), {"--servers", absl::StrCat(servers), "--exit-when-done"});
    job.set_server_flags(flags);
    REQUIRE(job.Start(0));
    CHECK(job.process(0).Wait(absl::Seconds(60)) == 0);
    CHECK(absl::StrContains(job.ServerLog(), "the job was done before: all 2 data epochs are completed"));
    CHECK(absl::StrContains(job.ServerLog(), "done: this server ends (--exit-when-done)"));
  }
}

}  // namespace recon
