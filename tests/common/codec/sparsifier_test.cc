#include "common/codec/sparsifier.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <numeric>
#include <random>

#include "catch2/catch.hpp"
#include "common/codec/random.h"
#include "common/codec/select_kernels.h"
#include "common/tensor/page.h"
#include "tests/support/simd_targets.h"

namespace recon {
namespace {

std::vector<float> Normal(size_t count, uint64_t seed) {
  std::mt19937_64 random(seed);
  std::normal_distribution<float> normal;
  std::vector<float> values(count);
  for (float& value : values) value = normal(random);
  return values;
}

// The k largest magnitudes by sorting all; of equal ones the lower index.
std::vector<uint16_t> LargestBySorting(const std::vector<float>& values, size_t k) {
  std::vector<uint16_t> order(values.size());
  std::iota(order.begin(), order.end(), uint16_t{0});
  std::stable_sort(order.begin(), order.end(),
                   [&](uint16_t a, uint16_t b) { return std::fabs(values[a]) > std::fabs(values[b]); });
  order.resize(k);
  std::sort(order.begin(), order.end());
  return order;
}

struct Sent {
  std::vector<uint16_t> indices;
  std::vector<float> values;
};

Sent Decoded(SparseWriter* writer, uint32_t count) {
  Sent sent;
  const std::string payload = writer->Finish();
  REQUIRE(ForEachSparsePage(CodecId::kSparseFp16, count, ByteChain::FromString(payload),
                            [&](const SparsePage& page) {
                              sent.values.assign(page.values.begin(), page.values.end());
                              sent.indices.assign(page.indices.begin(), page.indices.end());
                              if (!page.all) return;
                              sent.indices.resize(count);
                              std::iota(sent.indices.begin(), sent.indices.end(), uint16_t{0});
                            })
              .ok());
  return sent;
}

// One page with its memory.
struct OnePage {
  explicit OnePage(size_t count) : residual(count), velocity(count) {}

  Sent Push(const SparsifyOptions& options, const std::vector<float>& gradient, uint32_t seed = 1) {
    PageMemory memory;
    memory.residual = residual.data();
    memory.velocity = velocity.data();
    memory.guess = &guess;
    SparseWriter writer(CodecId::kSparseFp16);
    sparsifier.AddPage(options, gradient.data(), gradient.size(), seed, memory, &writer);
    return Decoded(&writer, static_cast<uint32_t>(gradient.size()));
  }

  Sparsifier sparsifier;
  std::vector<float> residual, velocity;
  uint32_t guess = 0;
};

}  // namespace

TEST_CASE("exact top-k sends the k largest sums, push after push, on every SIMD target", "[sparsifier]") {
  OnEverySimdTarget([] {
    for (const size_t count : {size_t{1}, size_t{5}, size_t{63}, size_t{1000}, size_t{65'536}}) {
      for (const double ratio : {0.001, 0.01, 0.25, 1.0}) {
        INFO(count << " values, ratio " << ratio);
        OnePage page(count);
        SparsifyOptions options;
        options.ratio = ratio;
        const auto k =
            std::max<size_t>(1, static_cast<size_t>(std::ceil(ratio * static_cast<double>(count))));
        for (uint64_t push = 0; push < 4; ++push) {
          // A quiet push after loud ones: the guess is far too high, then far too low.
          std::vector<float> gradient = Normal(count, push);
          for (float& value : gradient) value *= push == 2 ? 1e-6f : 1;
          std::vector<float> sums(count);
          for (size_t i = 0; i < count; ++i) sums[i] = page.residual[i] + gradient[i];
          const Sent sent = page.Push(options, gradient);
          REQUIRE(sent.indices == LargestBySorting(sums, k));
          for (size_t i = 0; i < k; ++i) {
            // What was sent and what was kept make up the sum, exactly.
            REQUIRE(sums[sent.indices[i]] - sent.values[i] == page.residual[sent.indices[i]]);
            sums[sent.indices[i]] = page.residual[sent.indices[i]];
          }
          REQUIRE(sums == page.residual);
        }
      }
    }
  });
}

TEST_CASE("of equal magnitudes the lower index is sent, and zeros are not", "[sparsifier]") {
  OnePage page(1000);
  SparsifyOptions options;
  options.ratio = 0.01;
  std::vector<float> gradient(1000, 0.0f);
  for (size_t i = 100; i < 200; ++i) gradient[i] = i % 2 ? 2.0f : -2.0f;
  const Sent sent = page.Push(options, gradient);
  std::vector<uint16_t> expected(10);
  std::iota(expected.begin(), expected.end(), uint16_t{100});
  CHECK(sent.indices == expected);
  OnePage sparse(1000);
  std::vector<float> three(1000, 0.0f);
  three[1] = three[2] = three[999] = 1;
  CHECK(sparse.Push(options, three).indices == std::vector<uint16_t>{1, 2, 999});
  CHECK(sparse.Push(options, std::vector<float>(1000, 0.0f)).indices.empty());
}

TEST_CASE("with feedback everything is delivered in the end; without, what is left out is lost",
          "[sparsifier]") {
  for (const bool feedback : {true, false}) {
    OnePage page(4096);
    SparsifyOptions options;
    options.ratio = 0.05;
    options.feedback = feedback;
    const std::vector<float> gradient = Normal(4096, 3);
    std::vector<double> delivered(4096);
    const auto push = [&](const std::vector<float>& values) {
      const Sent sent = page.Push(options, values);
      for (size_t i = 0; i < sent.indices.size(); ++i) delivered[sent.indices[i]] += sent.values[i];
    };
    push(gradient);
    for (int i = 0; i < 25; ++i) push(std::vector<float>(4096, 0.0f));
    double error = 0;
    double norm = 0;
    for (size_t i = 0; i < gradient.size(); ++i) {
      error += std::pow(gradient[i] - delivered[i], 2);
      norm += std::pow(gradient[i], 2);
    }
    if (feedback) {
      CHECK(std::sqrt(error / norm) < 1e-3);
    } else {
      CHECK(std::sqrt(error / norm) > 0.5);
    }
  }
}

TEST_CASE("a sampled threshold sends about k values and never more than 2k", "[sparsifier]") {
  OnePage page(kPageParams);
  SparsifyOptions options;
  options.rule = SparseRule::kTopKSampled;
  options.ratio = 0.01;
  for (uint64_t push = 0; push < 5; ++push) {
    const size_t sent = page.Push(options, Normal(kPageParams, push)).indices.size();
    CHECK(sent > 200);
    CHECK(sent <= 2 * 656);
  }
  // All alike: the sample says "all", the bound and the lower index decide.
  OnePage flat(kPageParams);
  const Sent sent = flat.Push(options, std::vector<float>(kPageParams, 1.0f));
  CHECK(sent.indices.size() == 2 * 656);
  CHECK(sent.indices.back() == 2 * 656 - 1);
}

TEST_CASE("randomk takes each value with its ratio, by seed and index alone", "[sparsifier]") {
  OnePage page(kPageParams);
  SparsifyOptions options;
  options.rule = SparseRule::kRandomK;
  options.ratio = 0.1;
  const std::vector<float> ones(kPageParams, 1.0f);
  const Sent sent = page.Push(options, ones, 77);
  std::vector<uint16_t> expected;
  for (uint32_t i = 0; i < kPageParams; ++i) {
    if (HashIndex(77, i) < 0.1 * 0x1p32) expected.push_back(static_cast<uint16_t>(i));
  }
  CHECK(sent.indices == expected);
  // Five standard deviations.
  CHECK(std::fabs(static_cast<double>(expected.size()) - 6553.6) < 5 * std::sqrt(6553.6 * 0.9));
}

TEST_CASE("threshold sends what has grown to it", "[sparsifier]") {
  OnePage page(100);
  SparsifyOptions options;
  options.rule = SparseRule::kThreshold;
  options.threshold = 1;
  std::vector<float> gradient(100, 0.0f);
  gradient[7] = 0.4f;
  gradient[9] = -1.0f;
  CHECK(page.Push(options, gradient).indices == std::vector<uint16_t>{9});
  CHECK(page.Push(options, gradient).indices == std::vector<uint16_t>{9});
  CHECK(page.Push(options, gradient).indices == std::vector<uint16_t>{7, 9});
}

TEST_CASE("momentum correction sums velocities and masks what was sent", "[sparsifier]") {
  OnePage page(10);
  SparsifyOptions options;
  options.ratio = 0.1;  // One value.
  options.momentum = 0.5f;
  std::vector<float> gradient(10, 0.0f);
  gradient[2] = 1;
  gradient[5] = 8;
  CHECK(page.Push(options, gradient).indices == std::vector<uint16_t>{5});
  CHECK(page.velocity[5] == 0);
  CHECK(page.velocity[2] == 1);
  CHECK(page.residual[2] == 1);
  std::vector<float> next(10, 0.0f);
  next[2] = 1;
  const Sent sent = page.Push(options, next);
  // Velocity 0.5 * 1 + 1, summed to the 1 of before.
  CHECK(sent.indices == std::vector<uint16_t>{2});
  CHECK(sent.values[0] == 2.5f);
  CHECK(page.velocity[2] == 0);
}

TEST_CASE("a residual kept in BF16 is the FP32 one, rounded", "[sparsifier]") {
  std::vector<uint16_t> residual(1000);
  uint32_t guess = 0;
  PageMemory memory;
  memory.residual_bf16 = residual.data();
  memory.guess = &guess;
  Sparsifier sparsifier;
  SparsifyOptions options;
  options.ratio = 0.01;
  const std::vector<float> gradient = Normal(1000, 5);
  SparseWriter writer(CodecId::kSparseFp16);
  sparsifier.AddPage(options, gradient.data(), 1000, 1, memory, &writer);
  const Sent sent = Decoded(&writer, 1000);
  CHECK(sent.indices == LargestBySorting(gradient, 10));
  for (size_t i = 0; i < 1000; ++i) {
    if (std::binary_search(sent.indices.begin(), sent.indices.end(), i)) continue;
    float kept;
    const uint32_t bits = static_cast<uint32_t>(residual[i]) << 16;
    std::memcpy(&kept, &bits, sizeof(kept));
    REQUIRE(std::fabs(kept - gradient[i]) <= std::fabs(gradient[i]) * 0x1p-8f);
  }
}

TEST_CASE("a value that is not finite is sent, so that it is noticed", "[sparsifier]") {
  for (const float bad : {std::nanf(""), -std::numeric_limits<float>::infinity()}) {
    for (const size_t at : {size_t{4321}, size_t{64}, size_t{0}}) {  // Some where the first guess looks.
      OnePage page(5000);
      std::vector<float> gradient = Normal(5000, 1);
      gradient[at] = bad;
      PageMemory memory;
      memory.residual = page.residual.data();
      memory.guess = &page.guess;
      SparseWriter writer(CodecId::kSparseFp16);
      page.sparsifier.AddPage({}, gradient.data(), gradient.size(), 1, memory, &writer);
      CHECK(writer.stats().non_finite == 1);
    }
  }
}

TEST_CASE("the sum of squares is that of double precision", "[sparsifier]") {
  for (const size_t count : {0u, 1u, 7u, 8u, 9u, 1003u}) {
    const std::vector<float> values = Normal(count, 9);
    double expected = 0;
    for (const float value : values) expected += static_cast<double>(value) * value;
    CHECK(SumOfSquares(values.data(), count) == Approx(expected).epsilon(1e-14));
  }
}

}  // namespace recon
