// How the workers of a job agree: policies, in jobs of threads of the test.

#include <algorithm>
#include <cmath>
#include <map>
#include <string>

#include "absl/strings/match.h"
#include "catch2/catch.hpp"
#include "tests/integration/in_process_job.h"
#include "tests/integration/job_checks.h"
#include "tests/support/process.h"

namespace recon {

TEST_CASE("workers that train on their own for some steps learn, and complete every sample once", "[job]") {
  for (const int bound : {-1, 0}) {
    INFO("bound " << bound);
    InProcessJob job(bound, 2);
    job.MakeLocal(3, bound < 0 ? 0.5 : 1);
    job.StartServer();
    CheckAllOk(job.RunWorkers({job.MakeWorker("a"), job.MakeWorker("b")}));
    const StatusReply status = *job.Control().Status();
    REQUIRE(status.evaluations_size() == 2);
    CHECK(status.evaluations(1).accuracy() > 0.9);
    CHECK(CompletedOnce(*job.Control().Completions(), 2, kSamples));
    CHECK(status.pushes() == 2 * 21);  // A lease of four batches is a round of three and one of one.
    uint64_t steps = 0;
    for (const MemberStatus& member : status.members()) steps += member.progress().steps();
    CHECK(steps == 2 * 42);
  }
}

TEST_CASE("the policy changes while workers train: every sample is completed once, and it learns", "[job]") {
  constexpr uint32_t kEpochs = 40;
  InProcessJob job(-1, 2);
  job.flags.job.set_data_epochs(kEpochs);
  job.flags.optimizer.learning_rate = 0.05;
  job.StartServer();
  std::vector<absl::Status> statuses;
  std::thread training([&] {
    statuses = job.RunWorkers({job.MakeWorker("a"), job.MakeWorker("b"), job.MakeWorker("c")});
  });
  ControlClient control = job.Control();
  uint64_t changes = 0;
  for (const char* sync : {"bsp", "ssp:2", "local:2", "asp", "local:3", "bsp", "asp"}) {
    INFO(sync);
    const uint64_t samples = (2 + 4 * changes++) * kSamples;
    REQUIRE(Eventually([&] {
      const auto status = control.Status();
      return status.ok() && status->samples_completed() >= samples;
    }));
    PolicySettings settings;
    settings.set_sync(sync);
    const auto changed = control.SetPolicy(settings);
    INFO(changed.status());
    REQUIRE(changed.ok());
    CHECK(changed->job().policy().sync() == sync);
    CHECK(control.Status()->cluster_epoch() == changes + 1);
  }
  training.join();
  CheckAllOk(statuses);
  const StatusReply status = *control.Status();
  CHECK(status.phase() == PHASE_FINISHED);
  CHECK(CompletedOnce(*control.Completions(), kEpochs, kSamples));
  CHECK(status.evaluations(kEpochs - 1).accuracy() > 0.9);

  PolicySettings late;
  late.set_sync("bsp");
  CHECK(absl::IsFailedPrecondition(control.SetPolicy(late).status()));
}

TEST_CASE("sync auto gives up its bound when workers wait for a slow one", "[job]") {
  InProcessJob job(-1, 3);
  job.flags.policy.set_sync("auto");
  job.flags.job.set_data_epochs(100'000);
  job.flags.optimizer.learning_rate = 0.05;
  job.StartServer();
  std::vector<WorkerFlags> workers = {job.MakeWorker("a"), job.MakeWorker("b"), job.MakeWorker("slow")};
  workers[2].slow_factor = 1000;
  ControlClient control = job.Control();
  CHECK(control.Status()->job().policy().sync() == "ssp:2");
  CHECK(control.Status()->policy_reason() == "to begin with");
  std::vector<absl::Status> statuses;
  std::thread training([&] { statuses = job.RunWorkers(workers); });
  StatusReply status;
  const bool loosened = Eventually(
      [&] {
        status = *control.Status();
        return status.job().policy().sync() == "asp";
      },
      absl::Minutes(2));
  CHECK(loosened);
  CHECK(absl::StartsWith(status.policy_reason(), "workers wait for slower ones"));
  const uint64_t samples = status.samples_completed();
  CHECK(Eventually([&] { return control.Status()->samples_completed() > samples + 5 * kSamples; }));
  job.stop = true;
  training.join();
  CheckAllOk(statuses);
}

TEST_CASE("local steps by speed: a slow worker takes fewer, and its share of the mean is smaller", "[job]") {
  InProcessJob job(0, 2);
  job.MakeLocal(8, 1);
  job.flags.policy.set_local_steps_by_speed(true);
  job.flags.job.set_split_samples(600);  // Two rounds of the fast one, and a part.
  job.flags.job.set_data_epochs(30);
  job.StartServer();
  std::vector<WorkerFlags> workers = {job.MakeWorker("fast"), job.MakeWorker("slow")};
  workers[0].step_time = absl::Milliseconds(3);
  workers[1].step_time = absl::Milliseconds(12);
  ControlClient control = job.Control();
  std::vector<absl::Status> statuses;
  std::thread training([&] { statuses = job.RunWorkers(workers); });
  CHECK(Eventually([&] {
    const auto status = control.Status();
    if (!status.ok() || status->members_size() != 2) return false;
    const int fast = status->members(0).name() == "fast" ? 0 : 1;
    const uint32_t steps = status->members(1 - fast).local_steps();
    return status->members(fast).local_steps() == 8 && steps >= 1 && steps <= 3;
  }));
  training.join();
  CheckAllOk(statuses);
  const StatusReply status = *control.Status();
  CHECK(CompletedOnce(*control.Completions(), 30, kSamples));
  CHECK(status.evaluations(29).accuracy() > 0.9);
  std::map<std::string, uint64_t> samples;
  for (const MemberStatus& member : status.members()) samples[member.name()] = member.progress().samples();
  CHECK(samples["fast"] > 2 * samples["slow"]);  // They have as many rounds.
}

TEST_CASE("a policy that the job cannot have is refused, and changes nothing", "[job]") {
  InProcessJob job(-1);
  job.flags.optimizer.kind = OptimizerKind::kAdam;
  job.StartServer();
  ControlClient control = job.Control();
  const auto refused = [&](const PolicySettings& settings, absl::StatusCode code, const char* message) {
    const absl::Status status = control.SetPolicy(settings).status();
    INFO(status);
    CHECK(status.code() == code);
    CHECK(absl::StrContains(status.message(), message));
  };
  PolicySettings settings;
  settings.set_sync("ssp:x");
  refused(settings, absl::StatusCode::kInvalidArgument, "--sync ssp:x");
  settings.set_sync("asp");
  settings.set_local_steps_by_speed(true);
  refused(settings, absl::StatusCode::kInvalidArgument, "--local-steps-by-speed");
  settings.set_sync("auto");
  refused(settings, absl::StatusCode::kInvalidArgument, "--auto-local-steps-max");
  settings.set_local_steps_by_speed(false);
  settings.set_sync("local:4");  // Of 32 samples; leases have 100.
  refused(settings, absl::StatusCode::kInvalidArgument, "4 local steps of 32 samples take 128");
  settings.set_sync("diloco:3");
  refused(settings, absl::StatusCode::kFailedPrecondition,
          "outer-nesterov on the server needs state of its own");
  settings.set_sync("bsp");
  settings.set_outer_learning_rate(std::nan(""));
  refused(settings, absl::StatusCode::kInvalidArgument, "--outer-optimizer");
  settings.set_sync("local:3");
  refused(settings, absl::StatusCode::kInvalidArgument, "--learning-rate is nan");
  settings.clear_outer_learning_rate();
  settings.set_outer_optimizer("adam");
  refused(settings, absl::StatusCode::kInvalidArgument, "needs an --outer-learning-rate");
  settings.set_outer_learning_rate(0.001);  // The moments of gradients are none of movements.
  refused(settings, absl::StatusCode::kFailedPrecondition, "outer-adam on the server needs state of its own");
  CHECK(control.Status()->job().policy().sync() == "asp");
  CHECK(control.Status()->cluster_epoch() == 1);
}

TEST_CASE("gradients that are accumulated are those of larger batches", "[job]") {
  std::vector<float> ends[2];
  uint64_t pushes[2] = {};
  for (const uint32_t accumulate : {1, 2}) {
    InProcessJob job(0);
    job.flags.job.set_batch_samples(64 / accumulate);
    job.StartServer();
    WorkerFlags worker = job.MakeWorker("a");
    worker.accumulate = accumulate;
    CheckAllOk(job.RunWorkers({worker}));
    const StatusReply status = *job.Control().Status();
    pushes[accumulate - 1] = status.pushes();
    CHECK(CompletedOnce(*job.Control().Completions(), 2, kSamples));
    job.StopServer();
    ends[accumulate - 1] = FinalParameters(&job);
  }
  // 100 samples are 64 and 36 either way, the last 50 are one.
  CHECK(pushes[0] == 42);
  CHECK(pushes[1] == 42);
  REQUIRE(ends[0].size() == ends[1].size());
  REQUIRE(!ends[0].empty());
  for (size_t i = 0; i < ends[0].size(); ++i) CHECK(ends[0][i] == Approx(ends[1][i]).margin(1e-4));
}

TEST_CASE("a group with a period is in each so-many-th push, as the mean of as many batches", "[job]") {
  for (const int bound : {-1, 2, 0}) {
    INFO("bound " << bound);
    InProcessJob job(bound, 2);
    (*job.flags.policy.mutable_sync_periods())["layers"] = 3;
    job.StartServer();
    std::vector<WorkerFlags> workers = {job.MakeWorker("a"), job.MakeWorker("b")};
    for (WorkerFlags& worker : workers) worker.tensor_groups = {{"*.weight", "layers"}};
    CheckAllOk(job.RunWorkers(workers));
    const StatusReply status = *job.Control().Status();
    CHECK(status.pushes() == 2 * 42);
    CHECK(CompletedOnce(*job.Control().Completions(), 2, kSamples));
    CHECK(status.evaluations(1).accuracy() > 0.9);
    job.StopServer();
    const auto store = *LocalStore::Open(job.flags.snapshots.directory, /*writer=*/false);
    const Manifest manifest = FinalManifest(SnapshotReader(store.get()));
    REQUIRE(manifest.shards_size() == 2);
    // Weights, then biases. Every update of a synchronous job is that of a step, of an asynchronous one of a
    // push.
    const uint64_t updates = manifest.shards(1).version();
    if (bound != 0) CHECK(updates == 2 * 42);
    CHECK(manifest.shards(0).version() <= updates / 3 + 1);
    CHECK(manifest.shards(0).version() >= updates / 3 - 2);
  }
}

TEST_CASE("fragments of local steps: training goes on while they are pushed, and nothing is left out",
          "[job]") {
  for (const int workers : {1, 2}) {
    std::vector<float> ends[2];
    for (const uint32_t fragments : {1, 2}) {
      INFO(workers << " workers, " << fragments << " fragments");
      InProcessJob job(0, workers);
      job.MakeLocal(4, 1);
      job.flags.job.set_split_samples(128);
      job.flags.policy.set_fragments(fragments);
      job.StartServer();
      std::vector<WorkerFlags> flags = {job.MakeWorker("a"), job.MakeWorker("b")};
      flags.resize(static_cast<size_t>(workers));
      CheckAllOk(job.RunWorkers(flags));
      const StatusReply status = *job.Control().Status();
      CHECK(CompletedOnce(*job.Control().Completions(), 2, kSamples));
      CHECK(status.evaluations(1).accuracy() > 0.9);
      // Eight leases of four batches and one of one.
      CHECK(status.pushes() == (fragments == 1 ? 18 : 34));
      job.StopServer();
      ends[fragments - 1] = FinalParameters(&job);
    }
    REQUIRE(ends[0].size() == ends[1].size());
    if (workers > 1) continue;
    // Weights and biases are in turn: one of them has all batches, the other all but the last of the job.
    size_t same = 0;
    for (size_t i = 0; i < ends[0].size(); ++i) same += std::fabs(ends[0][i] - ends[1][i]) < 1e-4 ? 1 : 0;
    CHECK(same > 0);
    for (size_t i = 0; i < ends[0].size(); ++i) CHECK(ends[0][i] == Approx(ends[1][i]).margin(0.05));
  }
}

// The server's mean of one worker's movement is that worker's parameters, but for the rounding of
// differences.
TEST_CASE("one worker with local steps ends where it ends without", "[job]") {
  std::vector<float> ends[2];
  for (const bool local : {false, true}) {
    InProcessJob job(0);
    if (local) job.MakeLocal(3, 1);
    job.StartServer();
    CheckAllOk(job.RunWorkers({job.MakeWorker("a")}));
    ends[local ? 1 : 0] = FinalParameters(&job);
  }
  REQUIRE(ends[0].size() == ends[1].size());
  for (size_t i = 0; i < ends[0].size(); ++i) REQUIRE(std::fabs(ends[0][i] - ends[1][i]) < 1e-4);
}

TEST_CASE("two BSP runs with one seed end in bit-equal parameters", "[job]") {
  std::string roots[2];
  for (std::string& root : roots) {
    InProcessJob job(0, 3);
    job.StartServer();
    CheckAllOk(job.RunWorkers({job.MakeWorker("a"), job.MakeWorker("b"), job.MakeWorker("c")}));
    root = FinalStateRoot(&job);
  }
  CHECK(roots[0].size() == 16);
  CHECK(roots[0] == roots[1]);
  InProcessJob other(0, 3);
  other.flags.job.set_seed(2);
  other.StartServer();
  CheckAllOk(other.RunWorkers({other.MakeWorker("a"), other.MakeWorker("b"), other.MakeWorker("c")}));
  CHECK(FinalStateRoot(&other) != roots[0]);
}

// Splits of one batch: in step t the three workers have samples [96 t, 96 t + 96) between them, which is the
// one worker's batch. The mean is the same sum in another order: 30 steps of rounding, a few 1e-6 of values
// around 1.
TEST_CASE("three BSP workers end where one worker with three times the batch ends", "[job]") {
  std::vector<float> ends[2];
  for (const int workers : {1, 3}) {
    InProcessJob job(0, workers);
    const uint32_t batch = static_cast<uint32_t>(96 / workers);
    job.flags.job.set_batch_samples(batch);
    job.flags.job.set_split_samples(batch);
    job.flags.job.set_data_epochs(3);
    job.StartServer();
    std::vector<WorkerFlags> flags;
    for (int i = 0; i < workers; ++i) {
      flags.push_back(job.MakeWorker(std::string(1, static_cast<char>('a' + i))));
      flags.back().data = "clusters:960,150,16,4";
    }
    CheckAllOk(job.RunWorkers(flags));
    CHECK(job.Control().Status()->frontier_step() == 30);
    ends[workers / 2] = FinalParameters(&job);
  }
  REQUIRE(ends[0].size() == ends[1].size());
  float difference = 0;
  for (size_t i = 0; i < ends[0].size(); ++i)
    difference = std::max(difference, std::fabs(ends[0][i] - ends[1][i]));
  CHECK(difference < 2e-5f);
}

}  // namespace recon
