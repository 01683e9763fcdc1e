#include "common/codec/int8_codec.h"

#include <cmath>
#include <cstring>
#include <limits>
#include <vector>

#include "absl/strings/match.h"
#include "catch2/catch.hpp"
#include "common/codec/random.h"
#include "tests/support/simd_targets.h"

namespace recon {
namespace {

std::vector<float> Wave(size_t count) {
  std::vector<float> values(count);
  for (size_t i = 0; i < count; ++i) values[i] = std::sin(static_cast<float>(i + 1) * 0.7f) * 3;
  return values;
}

// FORMAT.md, in plain code.
std::vector<uint8_t> Reference(const std::vector<float>& values, float scale, uint32_t seed) {
  std::vector<uint8_t> bytes;
  const float inverse = 1.0f / scale;
  for (size_t i = 0; i < values.size(); ++i) {
    const float u = static_cast<float>(HashIndex(seed, static_cast<uint32_t>(i)) >> 8) * 0x1p-24f;
    const float rounded = std::floor(values[i] * inverse + u);
    bytes.push_back(
        static_cast<uint8_t>(static_cast<int8_t>(std::fmin(std::fmax(rounded, -127.0f), 127.0f))));
  }
  return bytes;
}

}  // namespace

TEST_CASE("int8 bytes are those of the definition, on every SIMD target and length", "[int8]") {
  OnEverySimdTarget([] {
    for (const size_t count : {1u, 7u, 8u, 15u, 16u, 17u, 63u, 1000u, 65'536u}) {
      const std::vector<float> values = Wave(count);
      EncodeStats stats;
      const float scale = Int8Scale(values.data(), count, &stats);
      std::vector<uint8_t> bytes(count);
      EncodeInt8Page(values.data(), count, scale, 42, bytes.data());
      REQUIRE(bytes == Reference(values, scale, 42));
      std::vector<float> decoded(count);
      DecodeInt8(bytes.data(), count, scale, decoded.data());
      for (size_t i = 0; i < count; ++i) {
        REQUIRE(decoded[i] == static_cast<float>(static_cast<int8_t>(bytes[i])) * scale);
        REQUIRE(std::fabs(decoded[i] - values[i]) <= scale * 1.0001f);
      }
    }
  });
}

TEST_CASE("stochastic rounding keeps the mean, and another seed rounds otherwise", "[int8]") {
  const std::vector<float> values(65'536, 0.3f);
  std::vector<float> with_largest = values;
  with_largest[0] = 127;  // Scale 1: 0.3 becomes 0 or 1.
  EncodeStats stats;
  const float scale = Int8Scale(with_largest.data(), with_largest.size(), &stats);
  REQUIRE(scale == 1.0f);
  std::vector<uint8_t> one(values.size()), two(values.size());
  EncodeInt8Page(with_largest.data(), values.size(), scale, 1, one.data());
  EncodeInt8Page(with_largest.data(), values.size(), scale, 2, two.data());
  CHECK(one != two);
  double sum = 0;
  for (size_t i = 1; i < one.size(); ++i) sum += one[i];
  // Five standard deviations of the mean of 65,535 draws.
  CHECK(std::fabs(sum / 65'535 - 0.3) < 5 * std::sqrt(0.3 * 0.7 / 65'535));
}

TEST_CASE("int8 of zeros, of tiny and of non-finite values", "[int8]") {
  EncodeStats stats;
  std::vector<float> values(100, 0.0f);
  CHECK(Int8Scale(values.data(), values.size(), &stats) == 0);
  values[3] = 1e-38f;
  CHECK(Int8Scale(values.data(), values.size(), &stats) == 0);
  std::vector<uint8_t> bytes(100, 9);
  EncodeInt8Page(values.data(), values.size(), 0, 1, bytes.data());
  CHECK(bytes == std::vector<uint8_t>(100, 0));
  CHECK(stats.non_finite == 0);
  values[50] = std::numeric_limits<float>::infinity();
  values[51] = std::nanf("");
  Int8Scale(values.data(), values.size(), &stats);
  CHECK(stats.non_finite == 2);
}

TEST_CASE("an int8 payload that could decode to infinity is refused", "[int8]") {
  std::string payload(4 + 10, '\x7F');
  const auto check = [&](float scale) {
    std::memcpy(payload.data(), &scale, sizeof(scale));
    return CheckPayload(CodecId::kInt8, 10, ByteChain::FromString(payload));
  };
  CHECK(check(std::numeric_limits<float>::max() / 127).ok());
  CHECK(absl::IsInvalidArgument(check(3e38f)));
  payload[7] = '\x80';
  CHECK(absl::StrContains(check(1).message(), "int8 value 3 is -128"));
}

TEST_CASE("an int8 payload with a bad scale is refused", "[int8]") {
  for (const float scale : {-1.0f, std::nanf(""), std::numeric_limits<float>::infinity()}) {
    std::string payload(4 + 10, '\1');
    std::memcpy(payload.data(), &scale, sizeof(scale));
    const absl::Status status = CheckPayload(CodecId::kInt8, 10, ByteChain::FromString(payload));
    CHECK(absl::IsInvalidArgument(status));
    CHECK(absl::StrContains(status.message(), "int8 page 0: scale is"));
  }
}

}  // namespace recon
