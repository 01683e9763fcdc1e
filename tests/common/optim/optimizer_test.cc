#include "common/optim/optimizer.h"

#include <cmath>
#include <cstring>
#include <fstream>
#include <random>
#include <sstream>
#include <vector>

#include "absl/strings/str_split.h"
#include "catch2/catch.hpp"
#include "common/codec/codec.h"
#include "common/codec/selection.h"
#include "common/optim/apply_rules.h"
#include "common/optim/optimizer_kernels.h"
#include "common/optim/update_rules.h"
#include "hwy/targets.h"
#include "tools/source_paths.h"

namespace recon {
namespace {

constexpr OptimizerKind kKinds[] = {OptimizerKind::kSgd, OptimizerKind::kMomentum, OptimizerKind::kNesterov,
                                    OptimizerKind::kAdam, OptimizerKind::kAdamW};

std::vector<float> RandomValues(size_t count, uint32_t seed, float low, float high) {
  std::mt19937 random(seed);
  std::uniform_real_distribution<float> distribution(low, high);
  std::vector<float> values(count);
  for (float& value : values) value = distribution(random);
  return values;
}

OptimizerConfig Config(OptimizerKind kind) {
  OptimizerConfig config;
  config.kind = kind;
  config.learning_rate = 0.013;
  config.weight_decay = 0.003;
  return config;
}

struct State {
  std::vector<float> params, state1, state2;
  bool operator==(const State& other) const {
    const auto same = [](const std::vector<float>& a, const std::vector<float>& b) {
      return a.size() == b.size() &&
             (a.empty() || std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0);
    };
    return same(params, other.params) && same(state1, other.state1) && same(state2, other.state2);
  }
};

State SampleState(size_t count) {
  return {RandomValues(count, 1, -2, 2), RandomValues(count, 2, -1, 1), RandomValues(count, 3, 0, 1)};
}

std::vector<float> ParseFloats(const std::string& text) {
  std::vector<float> values;
  std::istringstream in(text);
  for (std::string word; in >> word;) values.push_back(std::strtof(word.c_str(), nullptr));
  return values;
}

}  // namespace

TEST_CASE("kernels give the scalar reference's bits on every SIMD target and at every length",
          "[optimizer]") {
  const int64_t supported = hwy::SupportedTargets();
  for (int64_t targets = supported; targets != 0; targets &= targets - 1) {
    hwy::SetSupportedTargetsForTest(targets & -targets);
    INFO("SIMD target " << hwy::TargetName(targets & -targets));
    for (const OptimizerKind kind : kKinds) {
      for (size_t count = 0; count < 70; ++count) {
        const std::vector<float> gradient = RandomValues(count, 9, -3, 3);
        State kernel = SampleState(count);
        State reference = kernel;
        for (uint64_t update = 0; update < 3; ++update) {
          const UpdateCoefficients c = CoefficientsFor(Config(kind), GroupPolicy{}, update, 0.37);
          ApplyUpdate(c, gradient.data(), count, kernel.params.data(), kernel.state1.data(),
                      kernel.state2.data());
          ApplyUpdateReference(c, gradient.data(), count, reference.params.data(), reference.state1.data(),
                               reference.state2.data());
        }
        INFO(OptimizerName(kind) << ", " << count << " values");
        REQUIRE((kernel == reference));
      }
    }
  }
  hwy::SetSupportedTargetsForTest(0);
}

TEST_CASE("stale gradients are corrected alike on every SIMD target and at every length", "[optimizer]") {
  const int64_t supported = hwy::SupportedTargets();
  for (int64_t targets = supported; targets != 0; targets &= targets - 1) {
    hwy::SetSupportedTargetsForTest(targets & -targets);
    INFO("SIMD target " << hwy::TargetName(targets & -targets));
    for (size_t count = 0; count < 70; ++count) {
      const std::vector<float> gradient = RandomValues(count, 9, -3, 3);
      const std::vector<float> now = RandomValues(count, 1, -2, 2), old = RandomValues(count, 2, -2, 2);
      std::vector<float> gap = gradient, compensated = gradient;
      CorrectByGap(now.data(), old.data(), 0.7f, count, gap.data());
      CompensateDelay(now.data(), old.data(), 0.3f, count, compensated.data());
      for (size_t i = 0; i < count; ++i) {
        const float moved = now[i] - old[i];
        REQUIRE(gap[i] == gradient[i] / (1 + std::abs(moved) * 0.7f));
        REQUIRE(compensated[i] == gradient[i] + gradient[i] * (0.3f * (gradient[i] * moved)));
      }
    }
  }
  hwy::SetSupportedTargetsForTest(0);
}

TEST_CASE("corrections of staleness are read from text, and checked", "[optimizer]") {
  CHECK(ParseCorrection("none")->kind == StalenessCorrection::kNone);
  CHECK(ParseCorrection("inverse")->versions == 0);
  CHECK(ParseCorrection("gap-aware")->versions == 16);
  CHECK(ParseCorrection("gap-aware:3")->versions == 3);
  CHECK(ParseCorrection("dc-asgd:256")->kind == StalenessCorrection::kDelayCompensated);
  for (const char* wrong : {"", "gap", "inverse:2", "none:0", "gap-aware:", "gap-aware:0", "gap-aware:257",
                            "gap-aware:-1", "gap-aware:2:3", "dc-asgd:x"}) {
    CAPTURE(wrong);
    CHECK(absl::IsInvalidArgument(ParseCorrection(wrong).status()));
  }
  CHECK(!CheckCorrection({StalenessCorrection::kGapAware, 0}).ok());
  CHECK(!CheckCorrection({StalenessCorrection::kInverse, 1}).ok());
  CHECK(!CheckCorrection({static_cast<StalenessCorrection>(4), 1}).ok());
  ApplyRules rules;
  rules.correction = {StalenessCorrection::kDelayCompensated, 9};
  const auto decoded = DecodeRules(EncodeRules(rules));
  REQUIRE(decoded.ok());
  CHECK(decoded->correction.kind == StalenessCorrection::kDelayCompensated);
  CHECK(decoded->correction.versions == 9);
  UpdateRules message = EncodeRules(rules);
  message.set_versions_kept(300);
  CHECK(absl::IsDataLoss(DecodeRules(message).status()));
}

TEST_CASE("an encoded gradient updates as its decoded values do, at any alignment", "[optimizer]") {
  const int64_t supported = hwy::SupportedTargets();
  for (int64_t targets = supported; targets != 0; targets &= targets - 1) {
    hwy::SetSupportedTargetsForTest(targets & -targets);
    INFO("SIMD target " << hwy::TargetName(targets & -targets));
    for (const CodecId codec : {CodecId::kFp32, CodecId::kFp16, CodecId::kBf16}) {
      for (size_t count = 0; count < 70; ++count) {
        std::vector<float> gradient = RandomValues(count, 9, -3, 3);
        if (count > 2) gradient[2] = 3e-6f;  // Subnormal in FP16.
        std::vector<uint8_t> bytes(1 + EncodedBytes(codec, count));
        Encode(codec, gradient.data(), count, bytes.data() + 1);
        const int exponent = codec == CodecId::kFp16 ? static_cast<int>(count) - 35 : 0;
        Decode(codec, bytes.data() + 1, count, gradient.data(), exponent);
        for (const OptimizerKind kind : kKinds) {
          State encoded = SampleState(count);
          State reference = encoded;
          UpdateCoefficients c = CoefficientsFor(Config(kind), GroupPolicy{}, 1, 0.37);
          c.encoded_scale = PowerOfTwo(exponent);
          ApplyEncodedUpdate(c, codec, bytes.data() + 1, count, encoded.params.data(), encoded.state1.data(),
                             encoded.state2.data());
          ApplyUpdateReference(c, gradient.data(), count, reference.params.data(), reference.state1.data(),
                               reference.state2.data());
          INFO(CodecName(codec) << ", " << OptimizerName(kind) << ", " << count << " values");
          REQUIRE((encoded == reference));
        }
      }
    }
  }
  hwy::SetSupportedTargetsForTest(0);
}

TEST_CASE("a reply written with an update is the encoding of the new parameters, also over the gradient",
          "[optimizer]") {
  const int64_t supported = hwy::SupportedTargets();
  for (int64_t targets = supported; targets != 0; targets &= targets - 1) {
    hwy::SetSupportedTargetsForTest(targets & -targets);
    INFO("SIMD target " << hwy::TargetName(targets & -targets));
    for (const CodecId codec : {CodecId::kFp32, CodecId::kFp16, CodecId::kBf16}) {
      for (const CodecId reply_codec : {CodecId::kFp16, CodecId::kBf16}) {
        // Too large for fp16, for bf16, and no number: among the vectors and in the tail.
        for (const float special : {0.0f, 7e4f, -3.4e38f, NAN}) {
          for (size_t count = 0; count < 70; ++count) {
            const std::vector<float> gradient = RandomValues(count, 9, -3, 3);
            std::vector<uint8_t> bytes(1 + EncodedBytes(codec, count));
            Encode(codec, gradient.data(), count, bytes.data() + 1);
            for (const OptimizerKind kind : kKinds) {
              State updated = SampleState(count);
              if (special != 0 && count > 0) updated.params[count * 7 / 10] = special;
              State expected = updated;
              const UpdateCoefficients c = CoefficientsFor(Config(kind), GroupPolicy{}, 1, 0.37);
              ApplyEncodedUpdate(c, codec, bytes.data() + 1, count, expected.params.data(),
                                 expected.state1.data(), expected.state2.data());
              std::vector<uint8_t> encoded(EncodedBytes(reply_codec, count));
              Encode(reply_codec, expected.params.data(), count, encoded.data());
              std::vector<uint8_t> reply(1 + encoded.size());
              if (codec != CodecId::kFp32) reply = bytes;
              ApplyEncodedUpdate(c, codec, (codec == CodecId::kFp32 ? bytes : reply).data() + 1, count,
                                 updated.params.data(), updated.state1.data(), updated.state2.data(),
                                 reply_codec, reply.data() + 1);
              INFO(CodecName(codec) << " and " << CodecName(reply_codec) << ", " << OptimizerName(kind)
                                    << ", " << count << " values, one of them " << special);
              REQUIRE((updated == expected));
              REQUIRE(std::vector<uint8_t>(reply.begin() + 1, reply.end()) == encoded);
            }
          }
        }
      }
    }
  }
  hwy::SetSupportedTargetsForTest(0);
}

TEST_CASE("a weighted sum has the same bits on every SIMD target", "[optimizer]") {
  const std::vector<float> values = RandomValues(1001, 4, -1, 1);
  std::vector<float> expected = RandomValues(1001, 5, -1, 1);
  const std::vector<float> start = expected;
  const int64_t supported = hwy::SupportedTargets();
  for (const CodecId codec : {CodecId::kFp32, CodecId::kFp16, CodecId::kBf16}) {
    // At an odd address, as a payload may lie.
    std::vector<uint8_t> encoded(1 + EncodedBytes(codec, values.size()));
    Encode(codec, values.data(), values.size(), &encoded[1]);
    const int exponent = codec == CodecId::kFp16 ? -20 : 0;
    std::vector<float> decoded(values.size());
    Decode(codec, &encoded[1], values.size(), decoded.data(), exponent);
    for (size_t i = 0; i < expected.size(); ++i) expected[i] = start[i] + 63.0f * decoded[i];
    for (int64_t targets = supported; targets != 0; targets &= targets - 1) {
      hwy::SetSupportedTargetsForTest(targets & -targets);
      std::vector<float> sum = start;
      AddWeightedEncoded(codec, exponent, &encoded[1], 63.0f, sum.size(), sum.data());
      CHECK(sum == expected);
      sum = start;
      AddWeighted(decoded.data(), 63.0f, sum.size(), sum.data());
      CHECK(sum == expected);
    }
  }
  hwy::SetSupportedTargetsForTest(0);
}

TEST_CASE("the optimizers are PyTorch's", "[optimizer]") {
  std::ifstream golden(InSources("tests/golden/optimizer_golden.txt"));
  int cases = 0;
  for (std::string line; std::getline(golden, line); ++cases) {
    const std::vector<std::string> parts = absl::StrSplit(line, " | ");
    std::istringstream head(parts[0]);
    std::string name;
    OptimizerConfig config;
    size_t steps = 0;
    head >> name >> config.learning_rate >> config.momentum >> config.beta1 >> config.beta2 >>
        config.epsilon >> config.weight_decay >> steps;
    config.kind = *ParseOptimizer(name);
    REQUIRE(parts.size() == steps + 3);
    std::vector<float> params = ParseFloats(parts[1]);
    std::vector<float> state1(params.size());
    std::vector<float> state2(params.size());
    for (size_t step = 0; step < steps; ++step) {
      const std::vector<float> gradient = ParseFloats(parts[2 + step]);
      ApplyUpdate(CoefficientsFor(config, GroupPolicy{}, step, 1), gradient.data(), params.size(),
                  params.data(), state1.data(), state2.data());
    }
    const std::vector<float> expected = ParseFloats(parts.back());
    for (size_t i = 0; i < params.size(); ++i) {
      INFO(name << ", weight decay " << config.weight_decay << ", value " << i);
      // Few roundings a step, in another order than PyTorch's: 4 ulp of the larger of value and change.
      CHECK(std::fabs(params[i] - expected[i]) <=
            4 * steps * 1.2e-7f * std::max(1.0f, std::fabs(expected[i])) * 0.25f);
    }
  }
  CHECK(cases == 7);
}

TEST_CASE("schedules: warm-up, steps, cosine", "[optimizer]") {
  LearningRateSchedule constant;
  constant.warmup_updates = 4;
  CHECK(constant.Factor(0) == Approx(0.2));
  CHECK(constant.Factor(3) == Approx(0.8));
  CHECK(constant.Factor(4) == 1);

  LearningRateSchedule step = *ParseSchedule("step:10:0.5");
  step.warmup_updates = 2;
  CHECK(step.Factor(11) == 1);
  CHECK(step.Factor(12) == 0.5);
  CHECK(step.Factor(22) == 0.25);

  const LearningRateSchedule cosine = *ParseSchedule("cosine:100:0.1");
  CHECK(cosine.Factor(0) == 1);
  CHECK(cosine.Factor(50) == Approx(0.55));
  CHECK(cosine.Factor(100) == Approx(0.1));
  CHECK(cosine.Factor(100'000) == Approx(0.1));
  double before = 2;
  for (uint64_t update = 0; update <= 100; ++update) {
    CHECK(cosine.Factor(update) < before);
    before = cosine.Factor(update);
  }
}

TEST_CASE("malformed optimizer flags are refused by name", "[optimizer]") {
  for (const char* text : {"", "linear", "step", "step:0", "step:x", "step:5:2", "step:5:0.5:1", "cosine",
                           "cosine:-1", "constant:1", "cosine:10:nan"}) {
    INFO(text);
    CHECK(absl::IsInvalidArgument(ParseSchedule(text).status()));
  }
  CHECK(absl::IsInvalidArgument(ParseOptimizer("lion").status()));
  OptimizerConfig config;
  CHECK(CheckOptimizer(config).ok());
  config.learning_rate = -1;
  CHECK(absl::IsInvalidArgument(CheckOptimizer(config)));
  config.learning_rate = std::nan("");
  CHECK(absl::IsInvalidArgument(CheckOptimizer(config)));
}

TEST_CASE("a group's policy scales rate and decay", "[optimizer]") {
  const UpdateCoefficients c = CoefficientsFor(Config(OptimizerKind::kSgd), GroupPolicy{0.5, 0}, 0, 1);
  CHECK(c.learning_rate == Approx(0.0065));
  CHECK(c.weight_decay == 0);
}

}  // namespace recon
