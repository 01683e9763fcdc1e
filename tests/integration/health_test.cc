// What a server says of itself to those who start and watch processes: gRPC's health service, and its end
// when nobody trains.

#include "tests/support/health_probe.h"

#include <signal.h>
#include <sys/stat.h>

#include "absl/strings/match.h"
#include "catch2/catch.hpp"
#include "common/snapshot/snapshot_reader.h"
#include "common/storage/local_store.h"
#include "tests/integration/process_job.h"
#include "tests/support/listening_socket.h"

namespace recon {
namespace {

std::string NewestReason(const ProcessJob& job) {
  const auto store = *LocalStore::Open(job.snapshots(), /*writer=*/false);
  const SnapshotReader reader(store.get());
  const auto list = reader.List();
  return list.ok() && !list->empty() ? reader.ReadManifest(list->back())->reason() : "";
}

}  // namespace

TEST_CASE("the health service says that a head serves", "[health]") {
  ProcessJob job({});
  REQUIRE(job.StartServer());
  CHECK(AskHealth(job.address()) == "serving");
}

TEST_CASE("what a server has is its owner's alone", "[health]") {
  ProcessJob job({});
  REQUIRE(job.StartServer());
  struct stat found {};
  REQUIRE(stat(job.data().c_str(), &found) == 0);
  CHECK((found.st_mode & 0777) == 0700);
}

TEST_CASE("a server without a place in its job does not serve", "[health]") {
  const ListeningSocket no_head;
  ProcessJob joined({"--join", no_head.address()});
  REQUIRE(joined.StartServer());
  CHECK(AskHealth(joined.address()) == "not serving");
}

TEST_CASE("a job that nobody trains ends with a snapshot and an exit code of its own", "[health]") {
  ProcessJob job({"--idle-timeout", "2s", "--data-epochs", "100000"});
  REQUIRE(job.StartServer());
  auto worker = job.StartWorker("one");
  REQUIRE(job.SamplesReach(1000));
  SECTION("because its worker has left") {
    worker->Signal(SIGTERM);
    CHECK(worker->Wait(absl::Seconds(30)) == 0);
    CHECK(job.server().Wait(absl::Seconds(30)) == 3);
    CHECK(absl::StrContains(job.ServerLog(), "nobody has trained it for 2s (--idle-timeout); workers: 0"));
  }
  SECTION("because its worker hangs") {
    auto slow = job.StartWorker("slow", {"--model", "mlp:16-24-4", "--step-ms", "3600000"});
    worker->Signal(SIGTERM);
    CHECK(worker->Wait(absl::Seconds(30)) == 0);
    CHECK(job.server().Wait(absl::Seconds(60)) == 3);
    CHECK(absl::StrContains(job.ServerLog(), "workers: 1"));
  }
  CHECK(NewestReason(job) == "drain");
  // It goes on where it was.
  job.set_server_flags({"--data-epochs", "100000"});
  REQUIRE(job.StartServer());
  CHECK(job.Status()->samples_completed() >= 1000);
}

// The duration that stands behind `before`; zero if there is none.
absl::Duration DurationAfter(const std::string& text, const std::string& before) {
  const size_t at = text.find(before);
  if (at == std::string::npos) return absl::ZeroDuration();
  const size_t begin = at + before.size();
  absl::Duration duration;
  absl::ParseDuration(text.substr(begin, text.find_first_of(" :,;\n", begin) - begin), &duration);
  return duration;
}

TEST_CASE("a job that stands still says so after ten seconds, and for whom it waits", "[health]") {
  ProcessJob job({"--data-epochs", "100000"});
  REQUIRE(job.StartServer());
  auto worker = job.StartWorker("slow", {"--model", "mlp:16-24-4", "--step-ms", "3600000"});
  REQUIRE(Eventually([&] { return absl::StrContains(job.ServerLog(), "the job has not moved for "); },
                     absl::Seconds(60)));
  CHECK(DurationAfter(job.ServerLog(), "the job has not moved for ") >= absl::Seconds(10));
  CHECK(absl::StrContains(job.ServerLog(), "it waits for a push of slow (1 leases, heard of "));
  std::string output;
  CHECK(RunProgram({"reconctl", "status", "--server", job.address()}, &output) == 0);
  CHECK(DurationAfter(output, "STANDS     for ") >= absl::Seconds(10));
  CHECK(absl::StrContains(output, "it waits for a push of slow"));
}

TEST_CASE("a job to which no worker comes ends, too; one that is done has not failed", "[health]") {
  ProcessJob job({"--idle-timeout", "1s", "--data-epochs", "2"});
  REQUIRE(job.StartServer());
  CHECK(job.server().Wait(absl::Seconds(30)) == 3);
  job.set_server_flags({"--idle-timeout", "3s", "--data-epochs", "2"});
  REQUIRE(job.StartServer());
  auto worker = job.StartWorker("one");
  CHECK(worker->Wait(absl::Seconds(30)) == 0);
  CHECK(job.server().Wait(absl::Seconds(30)) == 0);
  CHECK(absl::StrContains(job.ServerLog(), "the job is done, and nobody has trained it for 3s"));
}

TEST_CASE("an idle timeout that is no duration is refused", "[health]") {
  ProcessJob job({"--idle-timeout", "soon"});
  CHECK_FALSE(job.StartServer());
  CHECK(job.server().Wait(absl::Seconds(30)) == 2);
  CHECK(absl::StrContains(job.ServerLog(), "--idle-timeout soon: expected a duration"));
}

}  // namespace recon
