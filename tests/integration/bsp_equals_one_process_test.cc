#include <cmath>

#include "catch2/catch.hpp"
#include "common/optim/optimizer_kernels.h"
#include "tests/server/data_plane/push_frames.h"
#include "worker/data/cluster_dataset.h"
#include "worker/model/mlp_backend.h"

namespace recon {
namespace {

constexpr int kWorkers = 3;
constexpr uint64_t kSteps = 40;
constexpr double kRate = 0.05;
constexpr double kMomentum = 0.9;

// Samples of worker w in step t: batches of different sizes, so that the mean must be weighted.
std::vector<uint32_t> Indices(int worker, uint64_t step) {
  std::vector<uint32_t> indices;
  for (int i = 0; i < 8 + 4 * worker; ++i)
    indices.push_back(static_cast<uint32_t>(step * 100 + worker * 30 + i));
  return indices;
}

double MaxAbs(const std::vector<float>& values) {
  double largest = 0;
  for (const float value : values) largest = std::max(largest, std::fabs(static_cast<double>(value)));
  return largest;
}

}  // namespace

// One process computes the gradient of the mean loss over the union of the batches and applies it; the
// workers' mean, weighted by samples, is the same sum in another order. Each of its n = 36 terms (and the
// products inside, through 3 layers of at most 24 terms) is rounded to half an ulp, so that the gradients
// differ by at most gamma = (n + 3 * 24) * 2^-24 relative to the sum of magnitudes; with |g| the largest
// gradient value and sums of magnitudes at most n times the mean, one update differs by rate * gamma * n *
// |g|, momentum multiplies by 1 / (1 - mu), and differences of all steps before add up.
TEST_CASE("BSP with N workers gives, step by step, the parameters of one process on the union", "[bsp]") {
  const MlpModel model = *ParseMlp("16-24-12-4");
  const ParamLayout layout = *ParamLayout::Create(model.spec);
  const TrainAndTest data = MakeClusters(100 * kSteps + 100, 1, 16, 4);
  MlpBackend backend(model, 1);
  backend.Bind(&layout);
  std::vector<float> reference(layout.params());
  backend.InitialValues(5, absl::MakeSpan(reference));

  ParamServerHarness harness(0, OptimizerKind::kMomentum, kRate);
  harness.Define(model.spec, reference);
  for (uint32_t worker = 1; worker <= kWorkers; ++worker) harness.Join(worker);

  OptimizerConfig config;
  config.kind = OptimizerKind::kMomentum;
  config.learning_rate = kRate;
  config.momentum = kMomentum;
  std::vector<float> momentum(layout.params());
  double tolerance = 0;
  double worst = 0;
  for (uint64_t step = 0; step < kSteps; ++step) {
    std::vector<std::shared_ptr<ParamServerHarness::Pending>> pushes;
    const std::vector<float> replica = harness.Values(1);
    std::vector<uint32_t> all;
    for (int worker = 0; worker < kWorkers; ++worker) {
      const std::vector<uint32_t> indices = Indices(worker, step);
      all.insert(all.end(), indices.begin(), indices.end());
      Batch batch;
      data.train->Read(indices, &batch);
      std::vector<float> gradient(layout.params());
      REQUIRE(backend.Gradient(batch, {replica, step}, absl::MakeSpan(gradient)).ok());
      Frame frame =
          harness.MakeFrame(FrameKind::kPushPull, WorkerId(static_cast<uint32_t>(worker + 1)),
                            harness.IncarnationOf(static_cast<uint32_t>(worker + 1)), step, gradient);
      frame.header.samples = static_cast<uint32_t>(indices.size());
      pushes.push_back(harness.Send(frame));
    }
    for (const auto& push : pushes) {
      push->done.WaitForNotification();
      REQUIRE(push->reply.ok());
    }
    Batch batch;
    data.train->Read(all, &batch);
    std::vector<float> gradient(layout.params());
    REQUIRE(backend.Gradient(batch, {reference, step}, absl::MakeSpan(gradient)).ok());
    ApplyUpdateReference(CoefficientsFor(config, {}, step, 1), gradient.data(), gradient.size(),
                         reference.data(), momentum.data(), nullptr);
    const double n = static_cast<double>(all.size());
    const double gamma = (n + 3 * 24) * std::ldexp(1.0, -24);
    tolerance += kRate / (1 - kMomentum) * gamma * n * MaxAbs(gradient);
    const std::vector<float> values = harness.Values(1);
    double difference = 0;
    for (size_t i = 0; i < values.size(); ++i) {
      difference = std::max(difference, std::fabs(static_cast<double>(values[i]) - reference[i]));
    }
    INFO("step " << step << ", largest difference " << difference << ", tolerance " << tolerance);
    REQUIRE(difference <= tolerance);
    worst = std::max(worst, difference);
  }
  CHECK(worst < 0.01 * MaxAbs(reference));  // The tolerance is no blank cheque.
}

}  // namespace recon
