#include "worker/cuda/page_encoder.h"

#include <cmath>
#include <cstring>
#include <random>
#include <vector>

#include "catch2/catch.hpp"
#include "tests/worker/cuda/sequential_block.h"
#include "worker/encode/cpu_encoder.h"

namespace recon {
namespace {

ParamLayout OneTensor(uint32_t size) {
  ModelSpec model;
  model.set_name("one");
  TensorSpec* tensor = model.add_tensors();
  tensor->set_name("t");
  tensor->add_shape(size);
  return *ParamLayout::Create(model);
}

struct Case {
  const char* codec;
  cuda::PageRule rule;
  bool sampled = false;
  float momentum = 0;
  bool bf16_residual = false;
  bool feedback = true;
};

// What the GPU's logic makes of one page's pushes, beside the CPU's encoder.
void CheckPushes(const Case& c, uint32_t count) {
  const ParamLayout layout = OneTensor(count);
  EncoderOptions options;
  options.sampled = c.sampled;
  options.momentum = c.momentum;
  options.bf16_residual = c.bf16_residual;
  options.feedback = c.feedback;
  CpuEncoder cpu(options, &layout);
  const CodecSpec spec = *ParseCodecSpec(c.codec);
  const bool lossy = spec.sparse() || spec.kind == CodecKind::kInt8;

  std::vector<float> residual(count), velocity(count);
  std::vector<uint16_t> residual_bf16(count);
  uint32_t guess = 0;
  std::vector<uint64_t> slot(count / 2 + 2048);
  auto shared = std::make_unique<cuda::PageShared>();
  SequentialBlock block;
  std::mt19937_64 random(count);
  std::normal_distribution<float> normal;
  for (uint64_t push = 0; push < 4; ++push) {
    INFO(c.codec << ", " << count << " values, push " << push);
    GradientBuffer gradient;
    gradient.host.resize(count);
    for (float& value : gradient.host) {
      value = normal(random) * (push == 2 ? 1e-5f : 1.0f);
      if (value < -1.5f) value = -1.5f;  // Ties.
      if (value > 0.9f) value = 0;
      // From far below a page's range in FP16 to far above what it has without an exponent.
      if (push == 3) value = std::ldexp(value, static_cast<int>(random() % 80) - 50);
    }
    cuda::PageTask task;
    task.count = count;
    task.rule = c.rule;
    task.add_residual = task.keep = lossy && c.feedback;
    task.k = static_cast<uint32_t>(std::max(1.0, std::ceil(spec.ratio * count)));
    const uint32_t samples = (count + cuda::kSampleStride - 1) / cuda::kSampleStride;
    task.sample_rank = static_cast<uint32_t>(std::max(1.0, std::ceil(spec.ratio * samples)));
    task.magnitude_min = BitsOf(spec.threshold);
    task.hash_limit = static_cast<uint64_t>(std::ceil(spec.ratio * 0x1p32));
    std::vector<float> scratch = gradient.host;
    cuda::PageMemoryTable memory;
    memory.gradient = scratch.data();
    if (task.keep && !c.bf16_residual) memory.residual = residual.data();
    if (task.keep && c.bf16_residual) memory.residual_bf16 = residual_bf16.data();
    if (c.momentum > 0) memory.velocity = velocity.data();
    memory.guesses = &guess;
    memory.momentum = c.momentum;
    memory.seed = static_cast<uint32_t>(push);
    cuda::PageResult result;
    auto* out = reinterpret_cast<uint8_t*>(slot.data());
    cuda::PageEncoder<SequentialBlock>(block, *shared, task, memory, out).Run(&result);

    EncodePlan plan;
    plan.groups = {spec};
    plan.seed = push;
    const auto expected = cpu.Encode(&gradient, plan);
    REQUIRE(expected.ok());
    std::string bytes;
    if (spec.sparse()) bytes.assign(reinterpret_cast<const char*>(&result.header), sizeof(result.header));
    if (spec.kind == CodecKind::kInt8)
      bytes.assign(reinterpret_cast<const char*>(&result.scale), sizeof(float));
    bytes.append(reinterpret_cast<const char*>(out), result.body_bytes);
    REQUIRE(bytes == expected->shards[0].payload.ToString());
    CHECK(std::sqrt(result.sent_squares) == Approx(expected->norm).epsilon(1e-6));
    if (!c.bf16_residual && push == 0) {  // The CPU tells it now and then only.
      CHECK(std::sqrt(result.residual_squares) ==
            Approx(expected->residual_norm).epsilon(1e-3).margin(1e-3 * expected->norm));
    }
    CHECK(result.exponent == expected->shards[0].exponent);
    CHECK(result.out_of_range.saturated == expected->stats.saturated);
    CHECK(result.out_of_range.underflown == expected->stats.underflown);
  }
}

}  // namespace

TEST_CASE("the GPU's page encoder, run thread by thread, gives the CPU's bytes", "[cuda]") {
  using cuda::PageRule;
  const Case cases[] = {
      {"fp32", PageRule::kFp32},
      {"fp16", PageRule::kFp16},
      {"bf16", PageRule::kBf16},
      {"int8", PageRule::kInt8},
      {"int8", PageRule::kInt8, false, 0, true},
      {"topk:0.001", PageRule::kTopK},
      {"topk:0.01", PageRule::kTopK},
      {"topk:0.25", PageRule::kTopK},
      {"topk:1", PageRule::kTopK},
      {"topk:0.01", PageRule::kTopK, false, 0.9f},
      {"topk:0.01", PageRule::kTopK, false, 0, true},
      {"topk:0.01", PageRule::kTopK, false, 0, false, false},
      {"topk:0.01", PageRule::kTopKSampled, true},
      {"randomk:0.02", PageRule::kRandomK},
      {"threshold:1.2", PageRule::kThreshold},
  };
  for (const Case& c : cases) {
    for (const uint32_t count : {1u, 31u, 1000u, 65'535u, 65'536u}) CheckPushes(c, count);
  }
}

TEST_CASE("the GPU's page encoder counts what is out of range", "[cuda]") {
  std::vector<float> gradient = {1e6f, -1e6f, std::nanf(""), 3};
  std::vector<uint64_t> slot(16);
  cuda::PageMemoryTable memory;
  memory.gradient = gradient.data();
  cuda::PageTask task;
  task.count = 4;
  auto shared = std::make_unique<cuda::PageShared>();
  SequentialBlock block;
  cuda::PageResult result;
  cuda::PageEncoder<SequentialBlock>(block, *shared, task, memory, reinterpret_cast<uint8_t*>(slot.data()))
      .Run(&result);
  CHECK(result.out_of_range.saturated == 2);
  CHECK(result.out_of_range.non_finite == 1);
}

}  // namespace recon
