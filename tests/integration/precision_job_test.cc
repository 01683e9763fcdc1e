// What workers compute in, how much at once, and what their devices say: in jobs of threads of the test.

#include <algorithm>
#include <cmath>
#include <map>
#include <string>

#include "absl/strings/match.h"
#include "catch2/catch.hpp"
#include "tests/integration/in_process_job.h"
#include "tests/integration/job_checks.h"
#include "tests/support/process.h"
#include "worker/model/loss_scaler.h"
#include "worker/model/mlp_backend.h"
#include "worker/process/train_loop.h"
#include "worker/training/member.h"

namespace recon {
namespace {

// Ends a job that goes on for ever, and its worker, with the test.
struct RunningWorker {
  RunningWorker(InProcessJob* job, const WorkerFlags& flags)
      : job_(job), thread_([this, flags] { status_ = RunWorker(flags, &job_->stop); }) {}
  ~RunningWorker() {
    job_->stop = true;
    thread_.join();
    INFO(status_);
    CHECK(status_.ok());
  }

 private:
  InProcessJob* const job_;
  absl::Status status_;
  std::thread thread_;
};

MemberStatus MemberOf(const InProcessJob& job, const std::string& name) {
  const auto status = job.Control().Status();
  if (!status.ok()) return MemberStatus();
  for (const MemberStatus& member : status->members()) {
    if (member.name() == name) return member;
  }
  return MemberStatus();
}

// A device that has memory for so many samples.
class SmallDevice : public ModelBackend {
 public:
  SmallDevice(const MlpModel& model, size_t samples_max) : inner_(model, 1), samples_max_(samples_max) {}

  const ModelSpec& spec() const override { return inner_.spec(); }
  bool simulated() const override { return false; }
  void InitialValues(uint64_t seed, absl::Span<float> values) const override {
    InitMlp(*layout_, seed, values);
  }
  absl::StatusOr<BatchResult> Evaluate(const Batch& batch, const ParameterView& parameters) override {
    inner_.Bind(layout_);
    return inner_.Evaluate(batch, parameters);
  }
  void FreeScratch() override { ++freed_; }

  int refused() const { return refused_; }
  int freed() const { return freed_; }
  size_t largest() const { return largest_; }

 private:
  absl::StatusOr<BatchResult> ComputeGradient(const Batch& batch, const ParameterView& parameters,
                                              const GradientTerms& terms,
                                              absl::Span<float> gradient) override {
    if (batch.samples > samples_max_) {
      ++refused_;
      return absl::ResourceExhaustedError("the test's device is full");
    }
    largest_ = std::max(largest_, batch.samples);
    inner_.Bind(layout_);
    return inner_.Gradient(batch, parameters, gradient, terms);
  }

  MlpBackend inner_;
  const size_t samples_max_;
  size_t largest_ = 0;
  int refused_ = 0, freed_ = 0;
};

// As RunWorker() does it.
absl::Status TrainOn(ModelBackend* backend, const WorkerFlags& flags, const std::atomic<bool>& stop) {
  const TrainAndTest data = *OpenDataset(flags.data);
  Member::Options options = MemberOptionsOf(flags);
  options.model = backend->spec();
  options.train_samples = data.train->size();
  options.test_samples = data.test->size();
  const auto member = Member::Join(options, backend, &stop);
  if (!member.ok()) return member.status();
  TrainLoop::Options loop_options;
  loop_options.batch = flags.batch;
  loop_options.memory_used = [] { return std::nullopt; };
  TrainLoop loop(loop_options, backend, &data, (*member)->trainer());
  return (*member)->Leave(loop.Run());
}

}  // namespace

TEST_CASE("a job trained in bf16 or fp16 is as accurate as one in fp32", "[job]") {
  std::map<Precision, std::vector<double>> accuracies;
  for (const Precision precision : {Precision::kFp32, Precision::kBf16, Precision::kFp16}) {
    for (const uint64_t seed : {1, 2, 3}) {
      INFO(PrecisionName(precision) << ", seed " << seed);
      InProcessJob job(0, 2);
      job.flags.job.set_seed(seed);
      job.StartServer();
      std::vector<WorkerFlags> workers = {job.MakeWorker("a"), job.MakeWorker("b")};
      for (WorkerFlags& worker : workers) worker.model.precision = precision;
      CheckAllOk(job.RunWorkers(workers));
      const StatusReply status = *job.Control().Status();
      REQUIRE(status.evaluations_size() == 2);
      CHECK(status.members(0).progress().precision() == PrecisionName(precision));
      accuracies[precision].push_back(status.evaluations(1).accuracy());
      CHECK(CompletedOnce(*job.Control().Completions(), 2, kSamples));
    }
    std::sort(accuracies[precision].begin(), accuracies[precision].end());
  }
  const double exact = accuracies[Precision::kFp32][1];
  CHECK(exact > 0.9);
  CHECK(accuracies[Precision::kBf16][1] >= exact - 0.01);
  CHECK(accuracies[Precision::kFp16][1] >= exact - 0.01);
}

TEST_CASE("an overflow in fp16 halves the loss scale, and every sample is completed once", "[job]") {
  for (const int bound : {-1, 0}) {
    for (const uint32_t accumulate : {1u, 3u}) {
      INFO("bound " << bound << ", accumulate " << accumulate);
      InProcessJob job(bound, 2);
      job.flags.job.set_data_epochs(8);
      job.StartServer();
      std::vector<WorkerFlags> workers = {job.MakeWorker("a"), job.MakeWorker("b")};
      for (WorkerFlags& worker : workers) {
        worker.model.precision = Precision::kFp16;
        worker.loss_scale = LossScaler::kMax;
        worker.accumulate = accumulate;
      }
      CheckAllOk(job.RunWorkers(workers));
      const StatusReply status = *job.Control().Status();
      CHECK(CompletedOnce(*job.Control().Completions(), 8, kSamples));
      CHECK(status.evaluations(7).accuracy() > 0.9);
      for (const MemberStatus& member : status.members()) {
        CHECK(member.progress().skipped_batches() > 0);
        CHECK(member.progress().loss_scale() ==
              std::ldexp(LossScaler::kMax, -static_cast<int>(member.progress().skipped_batches())));
      }
    }
  }
}

TEST_CASE("values that do not stay finite without loss scaling end the worker with the precision's name",
          "[job]") {
  InProcessJob job(-1);
  job.flags.optimizer.learning_rate = 1e6;
  job.StartServer();
  WorkerFlags worker = job.MakeWorker("a");
  worker.model.precision = Precision::kFp16;
  const std::vector<absl::Status> statuses = job.RunWorkers({worker});
  INFO(statuses[0]);
  CHECK(absl::IsOutOfRange(statuses[0]));
  CHECK(absl::StrContains(statuses[0].message(), "values do not stay finite in fp16"));
}

TEST_CASE("one synchronous worker in fp16, and in pieces of its batches, ends in equal bits twice", "[job]") {
  const auto run = [](Precision precision, uint32_t piece_samples) {
    InProcessJob job(0);
    job.StartServer();
    WorkerFlags worker = job.MakeWorker("a");
    worker.model.precision = precision;
    worker.batch.piece_samples = piece_samples;
    CheckAllOk(job.RunWorkers({worker}));
    CHECK(CompletedOnce(*job.Control().Completions(), 2, kSamples));
    job.StopServer();
    return FinalParameters(&job);
  };
  const std::vector<float> half = run(Precision::kFp16, 0);
  REQUIRE_FALSE(half.empty());
  CHECK(run(Precision::kFp16, 0) == half);
  const std::vector<float> whole = run(Precision::kFp32, 0);
  const std::vector<float> pieces = run(Precision::kFp32, 5);
  CHECK(run(Precision::kFp32, 5) == pieces);
  CHECK(whole != half);
  REQUIRE(pieces.size() == whole.size());
  for (size_t i = 0; i < whole.size(); ++i) CHECK(pieces[i] == Approx(whole[i]).margin(1e-4));
}

TEST_CASE("batches that follow the device grow while samples come faster, up to a split", "[job]") {
  InProcessJob job(-1);
  job.flags.job.set_data_epochs(100'000);
  job.StartServer();
  WorkerFlags flags = job.MakeWorker("a");
  flags.batch.follows_device = true;
  flags.batch.tuning.window_min = absl::Milliseconds(50);
  flags.batch.tuning.retry_after = absl::Milliseconds(500);  // Others may use this machine, too.
  flags.batch.tuning.retry_after_max = absl::Milliseconds(500);
  flags.step_time = absl::Milliseconds(20);  // As if a batch took as long whatever it has.
  const RunningWorker worker(&job, flags);
  CHECK(Eventually([&] { return MemberOf(job, "a").progress().batch_samples() == 100; }));
  CHECK(Eventually([&] {
    const auto status = job.Control().Status();
    return status.ok() && status->samples_completed() > 5 * kSamples && status->evaluations_size() > 0 &&
           status->evaluations(status->evaluations_size() - 1).accuracy() > 0.9;
  }));
}

TEST_CASE("where the job's policy leaves no choice of batches, a worker that wants one is refused", "[job]") {
  InProcessJob job(0);
  job.StartServer();
  WorkerFlags worker = job.MakeWorker("a");
  worker.batch.follows_device = true;
  const std::vector<absl::Status> statuses = job.RunWorkers({worker});
  CHECK(absl::IsInvalidArgument(statuses[0]));
  CHECK(absl::StrContains(statuses[0].message(), "--batch auto: the job is synchronous"));
}

TEST_CASE("a device without memory for a batch computes it in pieces, or the next ones are smaller",
          "[job]") {
  const MlpModel model = *ParseMlp("16-24-4");
  for (const bool pieces : {true, false}) {
    INFO("pieces " << pieces);
    InProcessJob job(-1);
    job.StartServer();
    WorkerFlags worker = job.MakeWorker("a");
    worker.batch.pieces_follow_device = pieces;
    worker.batch.follows_device = !pieces;
    SmallDevice device(model, 10);
    const absl::Status status = TrainOn(&device, worker, job.stop);
    INFO(status);
    CHECK(status.ok());
    CHECK(device.refused() >= 2);  // 32, 16.
    CHECK(device.freed() >= device.refused());
    CHECK(device.largest() <= 10);
    CHECK(CompletedOnce(*job.Control().Completions(), 2, kSamples));
    CHECK(job.Control().Status()->evaluations(1).accuracy() > 0.9);
  }
  InProcessJob job(-1);
  job.StartServer();
  SmallDevice device(model, 10);
  const absl::Status status = TrainOn(&device, job.MakeWorker("a"), job.stop);
  CHECK(absl::IsResourceExhausted(status));
  CHECK(absl::StrContains(status.message(), "no memory to compute 32 samples at once, see --micro-batch"));
}

TEST_CASE("a worker says how its device is, and one whose device is busy gets smaller leases", "[job]") {
  InProcessJob job(-1);
  job.flags.job.set_data_epochs(10'000);
  job.flags.job.set_split_samples(2);
  job.StartServer();
  WorkerFlags flags = job.MakeWorker("real");
  flags.step_time = absl::Milliseconds(20);
  const RunningWorker worker(&job, flags);
  CHECK(Eventually([&] {
    const DeviceStatus device = MemberOf(job, "real").progress().device_status();
    return device.has_utilization() && device.has_own_utilization() && device.memory_used_bytes() > 0;
  }));

  ControlClient control = job.Control();
  const RegisterReply registered = *control.Register(RequestOf("fake"));
  HeartbeatRequest heartbeat;
  heartbeat.mutable_identity()->set_worker(registered.worker());
  heartbeat.mutable_identity()->set_incarnation(PlayedSecret().incarnation().value());
  heartbeat.mutable_identity()->set_cluster_epoch(registered.cluster_epoch());
  heartbeat.mutable_progress()->set_samples_per_second(1600);  // 80 samples in 50 ms: 40 splits.
  DeviceStatus* device = heartbeat.mutable_progress()->mutable_device_status();
  const auto splits = [&] {
    REQUIRE(control.Heartbeat(heartbeat).ok());
    uint32_t most = 0;
    // At the end of a data epoch they are smaller.
    for (int i = 0; i < 1000 && most == 0; ++i) {
      AcquireRequest acquire;
      *acquire.mutable_identity() = heartbeat.identity();
      const AcquireReply reply = *control.Acquire(acquire);
      if (reply.lease().kind() == LEASE_NONE) continue;
      CompleteRequest give_back;
      *give_back.mutable_identity() = heartbeat.identity();
      give_back.set_lease(reply.lease().lease());
      give_back.set_abandon(true);
      REQUIRE(control.Complete(give_back).ok());
      if (reply.lease().kind() == LEASE_TRAIN) most = std::max(most, reply.lease().splits());
    }
    return most;
  };
  device->set_name("NVIDIA H200");
  device->set_utilization(0.9);
  device->set_own_utilization(0.85);
  CHECK(Eventually([&] { return splits() == 40; }));
  CHECK(MemberOf(job, "fake").lease_share_why().empty());
  device->set_own_utilization(0.15);
  CHECK(Eventually([&] { return splits() == 10; }));
  CHECK(MemberOf(job, "fake").lease_share() == Approx(0.25));
  CHECK(MemberOf(job, "fake").lease_share_why() == "others use 75 % of its device");

  device->set_utilization(7);
  const absl::Status refused = control.Heartbeat(heartbeat).status();
  CHECK(absl::IsInvalidArgument(refused));
  CHECK(absl::StrContains(refused.message(), "utilization is 7"));
}

}  // namespace recon
