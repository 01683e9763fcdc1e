// Every system call that a server makes on its files, from its start to the end of a job, fails in its turn.
// The server goes on, or it ends with 1 and names what failed; started again, it finishes the job with every
// sample counted once.

#include <fcntl.h>
#include <signal.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <random>
#include <vector>

#include "absl/strings/match.h"
#include "catch2/catch.hpp"
#include "common/base/clock.h"
#include "common/base/process.h"
#include "common/snapshot/snapshot_reader.h"
#include "common/storage/local_store.h"
#include "tests/integration/completed_once.h"
#include "tests/integration/servers_job.h"
#include "tests/support/fault_shim.h"

namespace recon {
namespace {

constexpr uint64_t kSamples = 4000;  // Of ProcessJob's workers.

// The shim's state, mapped here.
class Faults {
 public:
  explicit Faults(const std::string& path) : path_(path) {
    WriteWholeFile(path, std::string(sizeof(FaultState), '\0'));
    const int fd = open(path.c_str(), O_RDWR | O_CLOEXEC);
    state_ = static_cast<FaultState*>(
        mmap(nullptr, sizeof(FaultState), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0));
    close(fd);
  }
  ~Faults() { munmap(state_, sizeof(FaultState)); }
  Faults(const Faults&) = delete;
  Faults& operator=(const Faults&) = delete;

  FaultState* operator->() { return state_; }
  // Of calls on paths below a directory; with `match` in them, and of that function, if those are not empty.
  std::vector<std::string> Environment(const std::string& below, const std::string& match = "",
                                       const std::string& call = "") const {
    std::vector<std::string> environment = {
        absl::StrCat("LD_PRELOAD=", ProgramDirectory(), "/librecon_fault_shim.so"),
        absl::StrCat("RECON_FAULT_BELOW=", below), absl::StrCat("RECON_FAULT_STATE=", path_)};
    if (!match.empty()) environment.push_back(absl::StrCat("RECON_FAULT_MATCH=", match));
    if (!call.empty()) environment.push_back(absl::StrCat("RECON_FAULT_CALL=", call));
    return environment;
  }

 private:
  std::string path_;
  FaultState* state_ = nullptr;
};

// What may pass is tried again for so long only.
std::vector<std::string> Impatient(std::vector<std::string> environment) {
  environment.push_back("RECON_STORE_PATIENCE=2s");
  return environment;
}

struct Fault {
  uint64_t call = 0;
  int error = 0;
  uint64_t times = 1;
};

std::vector<std::string> Flags() {
  return {"--data-epochs",
          "1",
          "--batch",
          "250",
          "--split-samples",
          "1000",
          "--snapshot-interval",
          "200ms",
          "--log-segment-bytes",
          "1000000",
          "--exit-when-done"};
}

std::string Describe(const Fault& fault, const std::string& failed) {
  return absl::StrCat("call ", fault.call, " (", failed, ") fails ", fault.times, " times with ",
                      fault.error == kFaultShort ? "a short transfer" : std::strerror(fault.error));
}

// What a job with this fault came to.
struct Outcome {
  uint64_t calls = 0;
  bool ended = false;  // The server did, with 1, before the job was done.
  std::string failed;
};

// A job with the fault, and then, where the server ended, what is left of it without one.
Outcome RunJob(const Fault& fault) {
  ProcessJob job(Flags());
  Faults faults(job.directory() / "faults");
  faults->error = fault.error;
  faults->fail_calls = fault.times;
  faults->fail_from = fault.call;
  Outcome outcome;
  const bool listens = job.StartServer(Impatient(faults.Environment(job.data())));
  std::unique_ptr<Process> worker;
  if (listens) {
    worker = job.StartWorker("one");
    REQUIRE(Eventually([&] { return !job.server().running() || !worker->running(); }, absl::Seconds(120)));
  }
  const int server_code = job.server().Wait(absl::Seconds(60));
  outcome.calls = faults->calls;
  outcome.failed = faults->failed;
  INFO(Describe(fault, outcome.failed) << "\n" << job.ServerLog());
  if (server_code != 0) {
    REQUIRE(server_code == 1);
    CHECK(absl::StrContains(job.ServerLog(), job.data()));  // It names what it could not use.
    CHECK_FALSE(absl::StrContains(job.ServerLog(), "DAMAGED"));
    outcome.ended = true;
    REQUIRE(job.StartServer());
    if (!listens) worker = job.StartWorker("one");
    REQUIRE(worker->Wait(absl::Seconds(120)) == 0);
    REQUIRE(job.Finished());
    CHECK(CompletedOnce(*job.Completions(), 1, kSamples));
    job.server().Signal(SIGTERM);
    CHECK(job.server().Wait(absl::Seconds(60)) == 0);
  } else {
    CHECK(worker->Wait(absl::Seconds(60)) == 0);
    REQUIRE(job.StartServer());
    CHECK(CompletedOnce(*job.Completions(), 1, kSamples));
  }
  return outcome;
}

// The same of a job of two servers, where the one that has joined has the fault.
Outcome RunServersJob(const Fault& fault) {
  ServersJob job(2, Flags());
  Faults faults(job.directory() / "faults");
  faults->error = fault.error;
  faults->fail_calls = fault.times;
  faults->fail_from = fault.call;
  Outcome outcome;
  REQUIRE(job.Start(0));
  REQUIRE(job.Start(1, Impatient(faults.Environment(job.DataOf(1)))));
  const auto worker = job.StartWorker("one", {"--model", "mlp:16-9000-4"});  // Three shards.
  REQUIRE(Eventually([&] { return !job.process(1).running() || !worker->running(); }, absl::Seconds(120)));
  // Once the job is done it ends, too.
  const bool done = !worker->running();
  const int code = done ? 0 : job.process(1).Wait(absl::Seconds(60));
  outcome.calls = faults->calls;
  outcome.failed = faults->failed;
  INFO(Describe(fault, outcome.failed) << "\n" << job.ServerLog() << "\n" << job.LogOf(1));
  if (code != 0) {
    REQUIRE(code == 1);
    CHECK(absl::StrContains(job.LogOf(1), job.DataOf(1)));
    CHECK_FALSE(absl::StrContains(job.LogOf(1), "DAMAGED"));
    outcome.ended = true;
    REQUIRE(job.Start(1));
  }
  CHECK(worker->Wait(absl::Seconds(120)) == 0);
  CHECK(job.server().Wait(absl::Seconds(60)) == 0);
  CHECK(job.process(1).Wait(absl::Seconds(60)) >= 0);
  REQUIRE(job.StartServer());
  CHECK(CompletedOnce(*job.Completions(), 1, kSamples));
  return outcome;
}

// RECON_FAULT_ROUNDS faults, or so many; 0: all of them.
void Walk(Outcome (*run)(const Fault& fault), size_t usual) {
  const Outcome undisturbed = run({});
  REQUIRE(undisturbed.calls > 100);
  const std::vector<int> errors = {EIO, ESTALE, EMFILE, ENOSPC, ETIMEDOUT, EINTR, kFaultShort};
  std::vector<Fault> walk;
  // For good would be a broken machine; three times in a row is a bad moment.
  for (uint64_t call = 1; call <= undisturbed.calls; ++call) {
    for (const int error : errors) walk.push_back({call, error, error == EINTR || error < 0 ? 1u : 3u});
  }
  const char* given = std::getenv("RECON_FAULT_SEED");
  const auto seed = given == nullptr ? static_cast<unsigned>(std::random_device{}())
                                     : static_cast<unsigned>(std::strtoul(given, nullptr, 10));
  INFO("seed " << seed);
  std::shuffle(walk.begin(), walk.end(), std::mt19937(seed));
  const char* rounds = std::getenv("RECON_FAULT_ROUNDS");  // 0: all of them.
  const size_t wanted = rounds == nullptr ? usual : static_cast<size_t>(std::atoi(rounds));
  if (wanted > 0 && wanted < walk.size()) walk.resize(wanted);
  int went_on = 0, ended = 0, not_reached = 0;
  for (const Fault& fault : walk) {
    const Outcome outcome = run(fault);
    ++(outcome.ended ? ended : outcome.failed.empty() ? not_reached : went_on);
  }
  WARN("of " << walk.size() << " faults in " << undisturbed.calls << " calls, after " << went_on
             << " the server went on, after " << ended << " it ended with 1, " << not_reached
             << " came to no call");
}

}  // namespace

TEST_CASE("a server outlives each failing system call, or ends with 1 and names the file", "[faults]") {
  Walk(&RunJob, 14);
}

TEST_CASE("so does a server that has joined, and the job waits for it", "[faults][servers]") {
  Walk(&RunServersJob, 5);
}

TEST_CASE("a manifest that cannot be read for a moment at the start is no damage, and no older one is taken",
          "[faults]") {
  ProcessJob job({"--data-epochs", "1", "--durability", "snapshot", "--snapshot-interval", "1h"});
  REQUIRE(job.StartServer());
  const auto worker = job.StartWorker("one");
  REQUIRE(worker->Wait(absl::Seconds(60)) == 0);
  job.server().Signal(SIGTERM);
  REQUIRE(job.server().Wait(absl::Seconds(30)) == 0);
  Faults faults(job.directory() / "faults");
  // Once started, a server may publish another one before it is killed.
  const auto newest = [&job] {
    const auto store = *LocalStore::Open(job.snapshots(), /*writer=*/false);
    return SnapshotReader(store.get()).List()->back().value();
  };
  for (const int error : {ESTALE, EIO, ETIMEDOUT, EMFILE}) {
    // Opening the newest one, and reading it.
    for (const uint64_t call : {1, 2, 3}) {
      INFO("call " << call << ": " << std::strerror(error));
      faults->calls = 0;
      faults->error = error;
      faults->fail_calls = 3;
      faults->fail_from = call;
      std::memset(faults->failed, 0, sizeof(faults->failed));
      const uint64_t restored = newest();
      REQUIRE(restored > 1);
      REQUIRE(job.StartServer(faults.Environment(job.data(), "/MANIFEST-")));
      CHECK(faults->calls > call + 2);
      CHECK_FALSE(std::string(faults->failed).empty());
      const StatusReply status = *job.Status();
      CHECK(status.samples_completed() == kSamples);
      CHECK(status.restored_generation() == restored);
      job.server().Kill();
    }
  }
  CHECK_FALSE(absl::StrContains(job.ServerLog(), "DAMAGED"));
}

TEST_CASE("a control database that cannot be made durable ends the server, which then goes on", "[faults]") {
  ProcessJob job(Flags());
  Faults faults(job.directory() / "faults");
  faults->error = EIO;
  faults->fail_calls = UINT64_MAX / 2;
  REQUIRE(job.StartServer(Impatient(faults.Environment(job.data(), "/control/", "fdatasync"))));
  REQUIRE(faults->calls > 0);
  // From now on.
  faults->fail_from = faults->calls + 1;
  const auto worker = job.StartWorker("one");
  CHECK(job.server().Wait(absl::Seconds(60)) == 1);
  CHECK(std::string(faults->failed) == "fdatasync");
  CHECK(absl::StrContains(job.ServerLog(), job.data() + "/control"));
  REQUIRE(job.StartServer());
  CHECK(worker->Wait(absl::Seconds(120)) == 0);
  REQUIRE(job.Finished());
  CHECK(CompletedOnce(*job.Completions(), 1, kSamples));
}

TEST_CASE("one failed fdatasync of the control database costs no completion", "[faults]") {
  ProcessJob job(Flags());
  Faults faults(job.directory() / "faults");
  faults->error = EIO;
  faults->fail_calls = 1;
  REQUIRE(job.StartServer(faults.Environment(job.data(), "/control/", "fdatasync")));
  faults->fail_from = faults->calls + 2;
  auto worker = job.StartWorker("one");
  REQUIRE(Eventually([&] { return !job.server().running() || !worker->running(); }, absl::Seconds(120)));
  CHECK(std::string(faults->failed) == "fdatasync");
  if (worker->running()) {
    // It ended, and said so.
    CHECK(job.server().Wait(absl::Seconds(60)) == 1);
    CHECK(absl::StrContains(job.ServerLog(), job.data() + "/control"));
  }
  if (!job.server().running()) REQUIRE(job.StartServer());
  CHECK(worker->Wait(absl::Seconds(120)) == 0);
  REQUIRE(job.Finished());
  CHECK(CompletedOnce(*job.Completions(), 1, kSamples));
}

TEST_CASE("another signal ends a server whose drain hangs, after a grace and at once then", "[faults]") {
  ProcessJob job({"--data-epochs", "100000", "--snapshot-interval", "1h"});
  Faults faults(job.directory() / "faults");
  faults->error = ESTALE;
  faults->fail_calls = UINT64_MAX / 2;
  std::vector<std::string> environment = faults.Environment(job.data(), "/MANIFEST-");
  environment.push_back("RECON_STORE_PATIENCE=10m");
  // Without a log the drain's snapshot is all there is: it is tried for as long as that.
  job.set_server_flags({"--data-epochs", "100000", "--snapshot-interval", "1h", "--durability", "snapshot"});
  REQUIRE(job.StartServer(environment));
  const auto worker = job.StartWorker("one");
  REQUIRE(job.SamplesReach(1000));
  faults->fail_from = faults->calls + 1;
  const int64_t first = MonotonicNanos();
  job.server().Signal(SIGTERM);
  REQUIRE(Eventually([&] { return absl::StrContains(job.ServerLog(), "draining"); }));
  REQUIRE(Eventually(
      [&] {
        job.server().Signal(SIGTERM);
        return !job.server().running();
      },
      absl::Seconds(60)));
  CHECK(MonotonicNanos() - first >= 5'000'000'000);
  CHECK(job.server().Wait(absl::ZeroDuration()) == 128 + SIGTERM);
  CHECK(absl::StrContains(job.ServerLog(), "another signal while this process was ending"));
}

}  // namespace recon
