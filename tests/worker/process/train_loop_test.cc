#include "worker/process/train_loop.h"

#include <algorithm>
#include <functional>
#include <memory>
#include <new>
#include <numeric>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "catch2/catch.hpp"
#include "tests/worker/training/small_trainer.h"

namespace recon {
namespace {

constexpr uint32_t kSamples = 100;

// Sample i has the feature i and the label i.
class CountingDataset : public Dataset {
 public:
  uint64_t size() const override { return kSamples; }
  uint32_t features() const override { return 1; }
  uint32_t classes() const override { return kSamples; }
  void Read(absl::Span<const uint32_t> indices, Batch* batch) const override {
    batch->samples = indices.size();
    batch->features.assign(indices.begin(), indices.end());
    batch->labels.assign(indices.begin(), indices.end());
  }
};

// The gradient of a batch is the mean of its features, everywhere; a sample's loss is 1, and those with an
// even number are right.
class CountingBackend : public ModelBackend {
 public:
  const ModelSpec& spec() const override { return spec_; }
  bool simulated() const override { return true; }
  void InitialValues(uint64_t seed, absl::Span<float> values) const override {
    std::fill(values.begin(), values.end(), static_cast<float>(seed));
  }
  absl::StatusOr<BatchResult> Evaluate(const Batch& batch, const ParameterView& parameters) override {
    evaluated.insert(evaluated.end(), batch.labels.begin(), batch.labels.end());
    evaluated_with.push_back(parameters.values[0]);
    return ResultOf(batch);
  }
  void FreeScratch() override { ++freed; }

  std::vector<uint32_t> computed, evaluated;
  std::vector<float> evaluated_with;
  std::vector<size_t> pieces;  // Samples of each.
  std::vector<float> scales;
  size_t memory_for = SIZE_MAX;  // So many samples.
  // What is computed with a larger scale overflows.
  float scale_max = LossScaler::kMax;
  std::function<void()> on_batch = [] {};
  int freed = 0;

 private:
  static BatchResult ResultOf(const Batch& batch) {
    BatchResult result;
    result.samples = batch.samples;
    result.loss_sum = static_cast<double>(batch.samples);
    result.correct = static_cast<uint64_t>(std::count_if(batch.labels.begin(), batch.labels.end(),
                                                         [](uint32_t label) { return label % 2 == 0; }));
    return result;
  }
  absl::StatusOr<BatchResult> ComputeGradient(const Batch& batch, const ParameterView&,
                                              const GradientTerms& terms,
                                              absl::Span<float> gradient) override {
    if (batch.samples > memory_for) throw std::bad_alloc();
    on_batch();
    pieces.push_back(batch.samples);
    scales.push_back(terms.loss_scale);
    BatchResult result = ResultOf(batch);
    result.overflow = terms.loss_scale > scale_max;
    if (result.overflow) return result;
    computed.insert(computed.end(), batch.labels.begin(), batch.labels.end());
    const float sum = std::accumulate(batch.features.begin(), batch.features.end(), 0.0f);
    const float term = terms.LossWeight(batch.samples) / terms.loss_scale * sum;
    for (float& value : gradient) value = term + (terms.add ? value : 0);
    return result;
  }

  const ModelSpec spec_ = ModelOf({4, 3, 5});
};

// A loop over the trainer of a worker in memory.
struct SmallLoop {
  explicit SmallLoop(const SmallWorker::Setup& setup = {}, TrainLoop::Options options = {}) : job(setup) {
    data.train = std::make_unique<CountingDataset>();
    data.test = std::make_unique<CountingDataset>();
    options.memory_used = [] { return std::nullopt; };
    backend.Bind(&job.layout);
    loop = std::make_unique<TrainLoop>(options, &backend, &data, job.trainer.get());
  }
  // What was offered, and then the end.
  absl::Status Run() {
    AcquireReply finished;
    finished.set_phase(PHASE_FINISHED);
    job.head->acquisitions.Otherwise(finished);
    return loop->Run();
  }

  SmallTrainer job;
  CountingBackend backend;
  TrainAndTest data;
  std::unique_ptr<TrainLoop> loop;
};

SmallWorker::Setup OfBatches(uint32_t samples, uint64_t seed = 3) {
  SmallWorker::Setup setup;
  setup.job.mutable_job()->set_batch_samples(samples);
  setup.job.mutable_job()->set_seed(seed);
  return setup;
}

std::vector<uint32_t> PartOf(const std::vector<uint32_t>& order, size_t begin, size_t end) {
  return {order.begin() + static_cast<ptrdiff_t>(begin), order.begin() + static_cast<ptrdiff_t>(end)};
}

}  // namespace

TEST_CASE("each sample of a lease is computed once, in the order of its pass", "[train_loop]") {
  SmallLoop run(OfBatches(1));
  run.job.Offer(5, 2, 3);
  run.job.Offer(6, 0, 2);
  REQUIRE(run.Run().ok());
  const std::vector<uint32_t> order = ShuffledOrder(kSamples, 3, 0);
  std::vector<uint32_t> expected = PartOf(order, 8, 20);
  const std::vector<uint32_t> second = PartOf(order, 0, 8);
  expected.insert(expected.end(), second.begin(), second.end());
  CHECK(run.backend.computed == expected);
  CHECK(run.job.completed() == std::vector<uint32_t>{2, 3, 4, 0, 1});
  CHECK(run.job.parameter() == -std::accumulate(expected.begin(), expected.end(), 0.0f));
  // A batch is told from others by its first sample, counted over all passes.
  std::vector<uint64_t> keys;
  for (const Frame& push : run.job.pushes()) keys.push_back(push.header.order_key);
  std::vector<uint64_t> expected_keys(20);
  std::iota(expected_keys.begin(), expected_keys.begin() + 12, 8);
  std::iota(expected_keys.begin() + 12, expected_keys.end(), 0);
  CHECK(keys == expected_keys);
}

TEST_CASE("passes over the data have orders of their own, and no batch is of two splits", "[train_loop]") {
  SmallLoop run(OfBatches(3));
  AcquireReply reply;
  reply.set_phase(PHASE_RUNNING);
  Lease* lease = reply.mutable_lease();
  lease->set_lease(5);
  lease->set_kind(LEASE_TRAIN);
  lease->set_data_epoch(2);
  lease->set_splits(2);
  lease->set_end(8);
  run.job.head->acquisitions.Next(reply);
  REQUIRE(run.Run().ok());
  CHECK(run.backend.computed == PartOf(ShuffledOrder(kSamples, 3, 2), 0, 8));
  CHECK(run.job.samples_of_pushes() == std::vector<uint32_t>{3, 1, 3, 1});
  CHECK(run.job.pushes().front().header.order_key == 2 * kSamples);
}

TEST_CASE("what others have completed of a lease is not computed", "[train_loop]") {
  SmallLoop run(OfBatches(4));
  run.job.Offer(5, 0, 3);
  int batches = 0;
  // The server is started again while the first split is computed, and another worker has done the second.
  run.backend.on_batch = [&] {
    if (++batches > 1) return;
    Lease left;
    left.set_lease(9);
    left.set_kind(LEASE_TRAIN);
    left.set_split(2);
    left.set_splits(1);
    left.set_begin(8);
    left.set_end(12);
    *run.job.setup.job.add_adopted() = left;
    run.job.ChangeJob([](JobConfig*) {});
  };
  REQUIRE(run.Run().ok());
  const std::vector<uint32_t> order = ShuffledOrder(kSamples, 3, 0);
  std::vector<uint32_t> expected = PartOf(order, 0, 4);
  const std::vector<uint32_t> last = PartOf(order, 8, 12);
  expected.insert(expected.end(), last.begin(), last.end());
  CHECK(run.backend.computed == expected);
  CHECK(run.job.completed() == std::vector<uint32_t>{2});
}

TEST_CASE("an evaluation has each sample of its split once, with the servers' parameters", "[train_loop]") {
  SmallLoop run(OfBatches(3));
  run.job.sums.SetValues(9);
  run.job.Offer(5, 1, 1, LEASE_EVAL);
  REQUIRE(run.Run().ok());
  CHECK(run.backend.evaluated == std::vector<uint32_t>{4, 5, 6, 7});
  CHECK(run.backend.evaluated_with == std::vector<float>{9, 9});
  const std::vector<CompleteRequest> asked = run.job.head->completions.asked();
  REQUIRE(asked.size() == 1);
  CHECK(asked[0].eval().samples() == 4);
  CHECK(asked[0].eval().correct() == 2);
  CHECK(asked[0].eval().loss_sum() == 4);
  CHECK(run.job.pushes().empty());
}

TEST_CASE("the gradients of a batch's pieces add up to that of the batch", "[train_loop]") {
  TrainLoop::Options options;
  options.batch.piece_samples = 2;
  SmallLoop pieces(OfBatches(4), options);
  SmallLoop whole(OfBatches(4));
  for (SmallLoop* run : {&pieces, &whole}) {
    run->job.Offer(5, 0, 2);
    REQUIRE(run->Run().ok());
    CHECK(run->job.samples_of_pushes() == std::vector<uint32_t>{4, 4});
  }
  CHECK(pieces.backend.pieces == std::vector<size_t>(4, 2));
  CHECK(whole.backend.pieces == std::vector<size_t>(2, 4));
  CHECK(pieces.job.parameter() == whole.job.parameter());
  CHECK(whole.job.parameter() < 0);
  CHECK(pieces.job.session->counters()->last_loss == 1);
}

TEST_CASE("where the machine has no memory for a batch, smaller pieces that follow it make the same",
          "[train_loop]") {
  TrainLoop::Options options;
  options.batch.pieces_follow_device = true;
  SmallLoop small(OfBatches(4), options);
  small.backend.memory_for = 1;
  small.job.Offer(5, 0, 1);
  REQUIRE(small.Run().ok());
  CHECK(small.backend.pieces == std::vector<size_t>(4, 1));
  CHECK(small.backend.freed >= 2);
  const std::vector<uint32_t> split = PartOf(ShuffledOrder(kSamples, 3, 0), 0, 4);
  CHECK(small.job.parameter() == -std::accumulate(split.begin(), split.end(), 0.0f) / 4);

  SmallLoop fixed(OfBatches(4));
  fixed.backend.memory_for = 1;
  fixed.job.Offer(5, 0, 1);
  const absl::Status status = fixed.Run();
  CHECK(absl::IsResourceExhausted(status));
  CHECK_THAT(std::string(status.message()), Catch::Matchers::Contains("--micro-batch"));
}

TEST_CASE("an overflow in FP16 skips its batch and halves the scale; with no scale left it is a divergence",
          "[train_loop]") {
  TrainLoop::Options options;
  options.precision = Precision::kFp16;
  options.loss_scale = 16;
  SmallLoop run(OfBatches(1), options);
  run.backend.scale_max = 4;
  run.job.Offer(5, 0, 1);
  REQUIRE(run.Run().ok());
  CHECK(run.backend.scales == std::vector<float>{16, 8, 4, 4});
  CHECK(run.backend.computed == PartOf(ShuffledOrder(kSamples, 3, 0), 2, 4));
  CHECK(run.job.pushes().size() == 2);
  CHECK(run.job.session->counters()->skipped_batches == 2);
  CHECK(run.job.session->counters()->loss_scale == 4);
  CHECK(run.job.completed() == std::vector<uint32_t>{0});

  options.loss_scale = 2;
  SmallLoop diverges(OfBatches(1), options);
  diverges.backend.scale_max = 0;
  diverges.job.Offer(5, 0, 1);
  const absl::Status status = diverges.Run();
  CHECK(absl::IsOutOfRange(status));
  CHECK(diverges.backend.scales == std::vector<float>{2, 1});
}

TEST_CASE("initial values are those of the job's seed", "[train_loop]") {
  SmallWorker::Setup setup = OfBatches(4, /*seed=*/11);
  setup.job.set_has_values(false);
  SmallLoop run(setup);
  AcquireReply wanted;
  wanted.set_needs_initial_values(true);
  run.job.head->acquisitions.Next(wanted);
  REQUIRE(run.Run().ok());
  CHECK(run.job.parameter() == 11);
}

TEST_CASE("a stop ends the loop with the batch that it meets", "[train_loop]") {
  SmallLoop run(OfBatches(1));
  run.job.Offer(5, 0, 3);
  int batches = 0;
  run.backend.on_batch = [&] {
    if (++batches == 3) run.job.trainer->RequestStop();
  };
  REQUIRE(run.loop->Run().ok());
  // That which was computed then, and one that takes what was kept back with it.
  CHECK(run.backend.computed == PartOf(ShuffledOrder(kSamples, 3, 0), 0, 4));
  CHECK(run.job.pushes().size() == 4);
  CHECK(run.job.completed().empty());
  CHECK(run.job.abandoned() == 1);
}

}  // namespace recon
