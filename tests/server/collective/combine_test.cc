#include "server/collective/combine.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <optional>
#include <random>

#include "catch2/catch.hpp"

namespace recon {
namespace {

template <typename T>
ByteChain Bytes(const std::vector<T>& values, size_t cut = SIZE_MAX) {
  std::string bytes(values.size() * sizeof(T), '\0');
  std::memcpy(bytes.data(), values.data(), bytes.size());
  // As the network has it: in pieces that end anywhere.
  if (cut >= bytes.size()) return ByteChain::FromString(bytes);
  ByteChain chain = ByteChain::FromString(bytes.substr(0, cut));
  chain.Append(ByteChain::FromString(bytes.substr(cut)));
  return chain;
}
template <typename T>
std::vector<T> Reduced(ReduceOp op, DType dtype, const std::vector<ByteChain>& contributions,
                       Wire wire = Wire::kSame) {
  CallHeader chunk;
  chunk.combine = Combine::kReduce;
  chunk.op = op;
  chunk.dtype = dtype;
  chunk.wire = wire;
  chunk.members = static_cast<uint32_t>(contributions.size());
  chunk.bytes = contributions.front().size();
  const ByteChain result = CombineChunk(chunk, contributions);
  REQUIRE(result.size() == chunk.bytes);
  std::vector<T> values(result.size() / sizeof(T));
  result.CopyTo(values.data(), result.size());
  return values;
}

TEST_CASE("sums go in the order of members, wherever the network cut them", "[collective]") {
  std::mt19937 random(1);
  std::normal_distribution<float> normal;
  std::vector<std::vector<float>> from(3, std::vector<float>(10'001));
  for (auto& values : from) {
    for (float& value : values) value = normal(random);
  }
  const auto sum = Reduced<float>(ReduceOp::kSum, DType::kFloat32,
                                  {Bytes(from[0], 5), Bytes(from[1], 40'001), Bytes(from[2], 2)});
  for (size_t i = 0; i < sum.size(); ++i) REQUIRE(sum[i] == (from[0][i] + from[1][i]) + from[2][i]);
  const auto mean =
      Reduced<float>(ReduceOp::kMean, DType::kFloat32, {Bytes(from[0], 5), Bytes(from[1]), Bytes(from[2])});
  for (size_t i = 0; i < sum.size(); ++i) REQUIRE(mean[i] == sum[i] / 3.0F);
}

TEST_CASE("values that are not numbers go through", "[collective]") {
  const float nan = std::numeric_limits<float>::quiet_NaN(), inf = std::numeric_limits<float>::infinity();
  const std::vector<float> a = {nan, 1, inf, -inf, 3e38F}, b = {1, nan, 1, inf, 3e38F};
  for (const ReduceOp op : {ReduceOp::kMin, ReduceOp::kMax, ReduceOp::kSum}) {
    const auto result = Reduced<float>(op, DType::kFloat32, {Bytes(a), Bytes(b)});
    CHECK(std::isnan(result[0]));
    CHECK(std::isnan(result[1]));
  }
  // On the way in 16 bits, too: what is too large becomes infinite, and nothing is cut.
  for (const Wire wire : {Wire::kFloat16, Wire::kBfloat16}) {
    std::vector<uint8_t> bytes(2 * a.size());
    NarrowTo(wire, a.data(), a.size(), bytes.data());
    const auto sum = Reduced<uint16_t>(ReduceOp::kSum, DType::kFloat32, {Bytes(bytes), Bytes(bytes)}, wire);
    std::vector<float> wide(a.size());
    WidenFrom(wire, reinterpret_cast<const uint8_t*>(sum.data()), wide.size(), wide.data());
    CHECK(std::isnan(wide[0]));
    CHECK(wide[1] == 2);
    CHECK(wide[2] == inf);
    CHECK(wide[3] == -inf);
    CHECK(wide[4] == inf);
  }
}

TEST_CASE("values in blocks of 8 bits are as near as their block's scale", "[collective]") {
  std::mt19937 random(2);
  std::normal_distribution<float> normal;
  constexpr size_t kCount = 10 * kInt8BlockValues + 7, kMembers = 3, kRounds = 40;
  for (size_t round = 0; round < kRounds; ++round) {
    std::vector<float> expected(kCount), largest(kCount / kInt8BlockValues + 1);
    std::vector<ByteChain> sent;
    for (size_t member = 0; member < kMembers; ++member) {
      std::vector<float> values(kCount);
      std::vector<float> block_largest(largest.size());
      for (size_t i = 0; i < kCount; ++i) {
        // Blocks of very different size; the fourth one is 0.
        const size_t block = i / kInt8BlockValues;
        values[i] = block == 3 ? 0 : normal(random) * std::ldexp(1.0F, 4 * static_cast<int>(block) - 20);
        expected[i] += values[i];
        block_largest[block] = std::max(block_largest[block], std::fabs(values[i]));
      }
      for (size_t block = 0; block < largest.size(); ++block) largest[block] += block_largest[block];
      std::vector<uint8_t> bytes(BytesOnWire(DType::kFloat32, Wire::kInt8, kCount));
      NarrowTo(Wire::kInt8, values.data(), kCount, bytes.data());
      sent.push_back(Bytes(bytes, 1 + random() % bytes.size()));
    }
    const auto sum = Reduced<uint8_t>(ReduceOp::kSum, DType::kFloat32, sent, Wire::kInt8);
    std::vector<float> wide(kCount);
    WidenFrom(Wire::kInt8, sum.data(), kCount, wide.data());
    for (size_t i = 0; i < kCount; ++i) {
      const float step = largest[i / kInt8BlockValues] / 127;
      // Of each member's step one, and of the sum's, which is no larger than all of these.
      REQUIRE(std::fabs(wide[i] - expected[i]) <= 2.1F * step);
    }
  }
  // Of which no number of values has so many bytes, and how many values others have.
  CHECK(ValuesOnWire(DType::kFloat32, Wire::kInt8, 4) == std::nullopt);
  CHECK(ValuesOnWire(DType::kFloat32, Wire::kInt8, kInt8BlockBytes + 3) == std::nullopt);
  for (const uint64_t count : {0, 1, 255, 256, 257, 1000}) {
    CHECK(ValuesOnWire(DType::kFloat32, Wire::kInt8, BytesOnWire(DType::kFloat32, Wire::kInt8, count)) ==
          count);
  }
  CHECK_FALSE(CheckReduction(ReduceOp::kMax, DType::kFloat32, Wire::kInt8).ok());
  CHECK_FALSE(CheckReduction(ReduceOp::kSum, DType::kFloat64, Wire::kInt8).ok());
}

TEST_CASE("a value in a block of 8 bits is right in the mean", "[collective]") {
  std::mt19937 random(3);
  std::uniform_real_distribution<float> below_largest(-127, 127);
  constexpr size_t kMembers = 3, kRounds = 400;
  double mean = 0;
  for (size_t round = 0; round < kRounds; ++round) {
    std::vector<ByteChain> sent;
    for (size_t member = 0; member < kMembers; ++member) {
      // The largest value makes the step 1; how a value is rounded depends on what else its block has.
      std::vector<float> values(kInt8BlockValues);
      for (float& value : values) value = below_largest(random);
      values[0] = 127;
      values[1] = 0.3F;
      std::vector<uint8_t> bytes(BytesOnWire(DType::kFloat32, Wire::kInt8, values.size()));
      NarrowTo(Wire::kInt8, values.data(), values.size(), bytes.data());
      sent.push_back(Bytes(bytes));
    }
    const auto result = Reduced<uint8_t>(ReduceOp::kMean, DType::kFloat32, sent, Wire::kInt8);
    std::vector<float> wide(kInt8BlockValues);
    WidenFrom(Wire::kInt8, result.data(), wide.size(), wide.data());
    mean += wide[1] / kRounds;
  }
  // Rounded to nearest it would be 0 each time.
  CHECK(std::fabs(mean - 0.3) < 0.1);
}

TEST_CASE("a block of 8 bits with a value that is not finite is not a number, and others are",
          "[collective]") {
  std::vector<float> values(2 * kInt8BlockValues, 1.0F);
  values[kInt8BlockValues + 5] = std::numeric_limits<float>::infinity();
  std::vector<uint8_t> bytes(BytesOnWire(DType::kFloat32, Wire::kInt8, values.size()));
  NarrowTo(Wire::kInt8, values.data(), values.size(), bytes.data());
  const auto mean =
      Reduced<uint8_t>(ReduceOp::kMean, DType::kFloat32, {Bytes(bytes), Bytes(bytes)}, Wire::kInt8);
  WidenFrom(Wire::kInt8, mean.data(), values.size(), values.data());
  for (size_t i = 0; i < kInt8BlockValues; ++i) REQUIRE(std::fabs(values[i] - 1.0F) < 0.02F);
  for (size_t i = kInt8BlockValues; i < values.size(); ++i) REQUIRE(std::isnan(values[i]));
}

TEST_CASE("integers wrap, and of bools a sum is or", "[collective]") {
  CHECK(Reduced<int32_t>(ReduceOp::kSum, DType::kInt32,
                         {Bytes<int32_t>({INT32_MAX}), Bytes<int32_t>({1})})[0] == INT32_MIN);
  CHECK(Reduced<uint8_t>(ReduceOp::kProduct, DType::kUint8,
                         {Bytes<uint8_t>({16}), Bytes<uint8_t>({17})})[0] == 16);
  const std::vector<uint8_t> a = {0, 0, 1, 7}, b = {0, 1, 0, 1};
  CHECK(Reduced<uint8_t>(ReduceOp::kSum, DType::kBool, {Bytes(a), Bytes(b)}) ==
        std::vector<uint8_t>{0, 1, 1, 1});
  CHECK(Reduced<uint8_t>(ReduceOp::kMin, DType::kBool, {Bytes(a), Bytes(b)}) ==
        std::vector<uint8_t>{0, 0, 0, 1});
}

}  // namespace
}  // namespace recon
