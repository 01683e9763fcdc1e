#include "common/codec/half_codec.h"

#include <cmath>
#include <cstring>
#include <limits>
#include <vector>

#include "catch2/catch.hpp"
#include "common/codec/codec.h"
#include "common/codec/select_kernels.h"
#include "common/codec/selection.h"
#include "tests/support/simd_targets.h"

namespace recon {
namespace {

float FromBits(uint32_t bits) {
  float value;
  std::memcpy(&value, &bits, sizeof(value));
  return value;
}

uint32_t ToBits(float value) {
  uint32_t bits;
  std::memcpy(&bits, &value, sizeof(bits));
  return bits;
}

// FP16 by definition, in double precision.
double HalfValue(uint16_t half) {
  const int exponent = half >> 10 & 31;
  const int mantissa = half & 1023;
  const double magnitude =
      exponent == 0 ? std::ldexp(mantissa, -24) : std::ldexp(1024 + mantissa, exponent - 25);
  return half & 0x8000 ? -magnitude : magnitude;
}

// The nearest finite half, ties to even, by looking at both neighbours: shares nothing with the kernel.
uint16_t NearestHalf(double value) {
  const uint16_t sign = std::signbit(value) ? 0x8000 : 0;
  const double magnitude = std::fabs(value);
  uint16_t low = 0;
  uint16_t high = 0x7BFF;
  if (magnitude >= HalfValue(high)) return sign | high;
  while (high - low > 1) {
    const auto middle = static_cast<uint16_t>((low + high) / 2);
    (HalfValue(middle) <= magnitude ? low : high) = middle;
  }
  const double below = magnitude - HalfValue(low);
  const double above = HalfValue(high) - magnitude;
  const bool up = above < below || (above == below && (high & 1) == 0);
  return sign | (up ? high : low);
}

uint16_t NearestBf16(float value) {
  const uint32_t bits = ToBits(value);
  const uint32_t low = bits >> 16;
  const uint32_t rest = bits & 0xFFFF;
  const bool up = rest > 0x8000 || (rest == 0x8000 && (low & 1) == 1);
  const auto rounded = static_cast<uint16_t>(low + (up ? 1 : 0));
  return (rounded & 0x7FFF) >= 0x7F80 ? static_cast<uint16_t>((rounded & 0x8000) | 0x7F7F) : rounded;
}

// Every interesting neighbourhood: around each half, ties included, and a walk through all exponents.
std::vector<float> InterestingValues() {
  std::vector<float> values;
  for (uint32_t half = 0; half < 0x7C00; ++half) {
    const auto exact = static_cast<float>(HalfValue(static_cast<uint16_t>(half)));
    const auto tie =
        static_cast<float>((HalfValue(static_cast<uint16_t>(half)) +
                            (half < 0x7BFF ? HalfValue(static_cast<uint16_t>(half + 1)) : 65536.0)) /
                           2);
    for (const float value : {exact, tie}) {
      for (const int delta : {-1, 0, 1}) {
        const uint32_t bits = ToBits(value);
        if (bits == 0 && delta < 0) continue;
        values.push_back(FromBits(bits + static_cast<uint32_t>(delta)));
        values.push_back(-values.back());
      }
    }
  }
  for (uint64_t bits = 0; bits < 0x7F800000; bits += 65521)
    values.push_back(FromBits(static_cast<uint32_t>(bits)));
  for (uint32_t exponent = 0; exponent < 255; ++exponent) {
    for (const uint32_t mantissa :
         {0x0000u, 0x7FFFu, 0x8000u, 0x8001u, 0x18000u, 0x7F7FFFu, 0x7F8000u, 0x7FFFFFu}) {
      values.push_back(FromBits(exponent << 23 | mantissa));
      values.push_back(-values.back());
    }
  }
  return values;
}

}  // namespace

TEST_CASE("fp16 and bf16 round to nearest even on every SIMD target", "[codec]") {
  const std::vector<float> values = InterestingValues();
  OnEverySimdTarget([&] {
    std::vector<uint16_t> half(values.size());
    std::vector<uint16_t> bf16(values.size());
    const EncodeStats half_stats =
        EncodeFp16(values.data(), values.size(), reinterpret_cast<uint8_t*>(half.data()));
    const EncodeStats bf16_stats =
        EncodeBf16(values.data(), values.size(), reinterpret_cast<uint8_t*>(bf16.data()));
    uint64_t half_wrong = 0;
    uint64_t bf16_wrong = 0;
    uint64_t half_saturated = 0;
    for (size_t i = 0; i < values.size(); ++i) {
      half_wrong += half[i] != NearestHalf(values[i]);
      bf16_wrong += bf16[i] != NearestBf16(values[i]);
      half_saturated += std::fabs(values[i]) >= 65520.0f;
    }
    CHECK(half_wrong == 0);
    CHECK(bf16_wrong == 0);
    CHECK(half_stats.saturated == half_saturated);
    CHECK(half_stats.non_finite == 0);
    CHECK(bf16_stats.saturated > 0);
  });
}

TEST_CASE("fp16 with an exponent is the value divided by its power of two, rounded, on every SIMD target",
          "[codec]") {
  const std::vector<float> interesting = InterestingValues();
  for (const int exponent : {kExponentMin, -60, -9, -1, 1, 13, 60, kExponentMax}) {
    // The neighbourhoods of every half, where they are with this exponent, and all of FP32.
    std::vector<float> values = interesting;
    for (const float value : interesting) {
      const double scaled = std::ldexp(static_cast<double>(value), exponent);
      if (std::fabs(scaled) < std::numeric_limits<float>::max()) values.push_back(static_cast<float>(scaled));
    }
    uint64_t cut = 0, zeroed = 0;
    std::vector<uint16_t> expected;
    for (const float value : values) {
      const double divided = std::ldexp(static_cast<double>(value), -exponent);
      expected.push_back(NearestHalf(divided));
      cut += std::fabs(divided) >= 65520;
      zeroed += value != 0 && (expected.back() & 0x7FFF) == 0;
    }
    INFO("exponent " << exponent);
    OnEverySimdTarget([&] {
      std::vector<uint16_t> halves(values.size());
      auto* const bytes = reinterpret_cast<uint8_t*>(halves.data());
      const EncodeStats stats = EncodeFp16(values.data(), values.size(), bytes, exponent);
      CHECK(halves == expected);
      CHECK(stats.saturated == cut);
      CHECK(stats.underflown == zeroed);
      CHECK(stats.non_finite == 0);
      std::vector<float> decoded(values.size());
      DecodeFp16(bytes, values.size(), decoded.data(), exponent);
      uint64_t wrong = 0;
      for (size_t i = 0; i < values.size(); ++i) {
        wrong += decoded[i] != std::ldexp(HalfValue(halves[i]), exponent);
      }
      CHECK(wrong == 0);
    });
  }
}

TEST_CASE("a page's exponent brings its largest magnitude to the top of fp16, and cuts nothing", "[codec]") {
  for (uint32_t bits = 1; bits < 0x7F800000; bits += bits < 1u << 23 ? 4099 : 1021) {
    const float largest = FromBits(bits);
    const int exponent = ExponentFor(bits);
    REQUIRE(exponent >= kExponentMin);
    REQUIRE(exponent <= kExponentMax);
    uint16_t half;
    const EncodeStats stats = EncodeFp16(&largest, 1, reinterpret_cast<uint8_t*>(&half), exponent);
    const bool too_large = largest >= std::ldexp(65520.0, kExponentMax);
    REQUIRE(stats.saturated == (too_large ? 1 : 0));
    if (exponent > kExponentMin) REQUIRE(HalfValue(half) >= 32768);
    REQUIRE(stats.underflown == 0);
  }
  CHECK(ExponentFor(0) == 0);
  CHECK(ExponentFor(ToBits(65519.99f)) == 0);
  CHECK(ExponentFor(ToBits(65520.0f)) == 1);
  CHECK(ExponentFor(ToBits(1.0f)) == -15);
  CHECK(ExponentFor(ToBits(std::numeric_limits<float>::infinity())) == 0);
  CHECK(ExponentFor(ToBits(std::numeric_limits<float>::quiet_NaN()) & 0x7FFFFFFF) == 0);
}

TEST_CASE("where fp16 cut nothing, its normal numbers are the same with the page's exponent", "[codec]") {
  std::vector<float> values;
  for (const float value : InterestingValues()) {
    if (std::fabs(value) < 65520) values.push_back(value);
  }
  std::vector<uint8_t> bytes(2 * values.size());
  std::vector<float> plain(values.size()), scaled(values.size());
  for (const float largest : {60000.0f, 3000.0f, 0.7f, 1e-3f}) {
    std::vector<float> page = values;
    for (float& value : page) value = std::fabs(value) <= largest ? value : largest;
    EncodeFp16(page.data(), page.size(), bytes.data());
    DecodeFp16(bytes.data(), page.size(), plain.data());
    const int exponent = ExponentFor(LargestMagnitudeBits(page.data(), page.size()));
    CHECK(exponent <= 0);
    EncodeFp16(page.data(), page.size(), bytes.data(), exponent);
    DecodeFp16(bytes.data(), page.size(), scaled.data(), exponent);
    uint64_t other = 0;
    for (size_t i = 0; i < page.size(); ++i) {
      other += std::fabs(page[i]) >= 0x1p-14f && ToBits(plain[i]) != ToBits(scaled[i]);
    }
    CHECK(other == 0);
  }
}

TEST_CASE("the largest magnitude is found wherever it lies, on every SIMD target", "[codec]") {
  OnEverySimdTarget([] {
    uint64_t wrong = 0;
    for (const size_t count : {1, 7, 16, 61, 64, 131}) {
      for (size_t at = 0; at < count; ++at) {
        for (const float largest : {-3.5f, 1e-40f, INFINITY, -NAN}) {
          std::vector<float> values(count, std::fabs(largest) < 1 ? -1e-42f : 1.5f);
          values[at] = largest;
          wrong += LargestMagnitudeBits(values.data(), count) != (ToBits(largest) & 0x7FFFFFFF);
        }
      }
    }
    CHECK(wrong == 0);
    CHECK(LargestMagnitudeBits(nullptr, 0) == 0);
  });
}

TEST_CASE("one value that becomes 0 is counted wherever it stands, and a 0 is not", "[codec]") {
  OnEverySimdTarget([] {
    uint64_t wrong = 0;
    for (const size_t count : {1, 7, 16, 61, 64, 131}) {
      for (size_t at = 0; at < count; ++at) {
        std::vector<float> values(count, 1.0f);
        std::vector<uint16_t> halves(count);
        auto* const bytes = reinterpret_cast<uint8_t*>(halves.data());
        for (const float zero : {0.0f, -0.0f}) {
          values[at] = zero;
          wrong += EncodeFp16(values.data(), count, bytes).underflown;
          wrong += EncodeBf16(values.data(), count, bytes).underflown;
        }
        values[at] = -0x1p-25f;
        wrong += EncodeFp16(values.data(), count, bytes).underflown != 1;
        wrong += halves[at] != 0x8000;
        values[at] = 0x1.004p-25f;
        wrong += EncodeFp16(values.data(), count, bytes).underflown;
        values[at] = 1e-41f;
        wrong += EncodeBf16(values.data(), count, bytes).underflown != 1;
      }
    }
    CHECK(wrong == 0);
  });
}

TEST_CASE("one value out of range is cut and counted wherever it stands", "[codec]") {
  OnEverySimdTarget([] {
    uint64_t wrong = 0;
    for (const size_t count : {1, 7, 16, 61, 64, 131}) {
      for (size_t at = 0; at < count; ++at) {
        for (const float large : {70000.0f, -3e38f, INFINITY, -NAN}) {
          std::vector<float> values(count, 1.0f);
          values[at] = large;
          std::vector<uint16_t> halves(count);
          const EncodeStats stats =
              EncodeFp16(values.data(), count, reinterpret_cast<uint8_t*>(halves.data()));
          const bool finite = std::isfinite(large);
          wrong += stats.saturated != (finite ? 1u : 0u) || stats.non_finite != (finite ? 0u : 1u);
          for (size_t i = 0; i < count; ++i) {
            if (i != at) wrong += halves[i] != 0x3C00;
          }
          if (finite) wrong += halves[at] != (large > 0 ? 0x7BFF : 0xFBFF);
        }
      }
    }
    CHECK(wrong == 0);
  });
}

TEST_CASE("every 16-bit value decodes to its exact value and encodes back", "[codec]") {
  std::vector<uint16_t> finite_halves;
  std::vector<uint16_t> finite_bf16;
  for (uint32_t bits = 0; bits < 0x10000; ++bits) {
    if ((bits & 0x7C00) != 0x7C00) finite_halves.push_back(static_cast<uint16_t>(bits));
    if ((bits & 0x7F80) != 0x7F80) finite_bf16.push_back(static_cast<uint16_t>(bits));
  }
  OnEverySimdTarget([&] {
    std::vector<float> values(finite_halves.size());
    DecodeFp16(reinterpret_cast<const uint8_t*>(finite_halves.data()), values.size(), values.data());
    uint64_t wrong = 0;
    for (size_t i = 0; i < values.size(); ++i) wrong += values[i] != HalfValue(finite_halves[i]);
    CHECK(wrong == 0);
    std::vector<uint16_t> again(values.size());
    EncodeFp16(values.data(), values.size(), reinterpret_cast<uint8_t*>(again.data()));
    CHECK(again == finite_halves);

    values.resize(finite_bf16.size());
    again.resize(finite_bf16.size());
    DecodeBf16(reinterpret_cast<const uint8_t*>(finite_bf16.data()), values.size(), values.data());
    for (size_t i = 0; i < values.size(); ++i) wrong += ToBits(values[i]) != uint32_t{finite_bf16[i]} << 16;
    CHECK(wrong == 0);
    EncodeBf16(values.data(), values.size(), reinterpret_cast<uint8_t*>(again.data()));
    CHECK(again == finite_bf16);
  });
}

TEST_CASE("codecs handle every length and alignment", "[codec]") {
  OnEverySimdTarget([] {
    for (const CodecId codec : {CodecId::kFp32, CodecId::kFp16, CodecId::kBf16}) {
      for (size_t count = 0; count < 70; ++count) {
        std::vector<float> values(count);
        for (size_t i = 0; i < count; ++i) values[i] = static_cast<float>(i) - 30.5f;
        std::vector<uint8_t> bytes(EncodedBytes(codec, count) + 2, 0xEE);
        uint8_t* unaligned = bytes.data() + 1;
        CHECK(Encode(codec, values.data(), count, unaligned).saturated == 0);
        CHECK(bytes.front() == 0xEE);
        CHECK(bytes.back() == 0xEE);
        CHECK(AllFinite(codec, unaligned, count));
        std::vector<float> decoded(count);
        Decode(codec, unaligned, count, decoded.data());
        CHECK(decoded == values);  // All of them are exact in 16 bits.
      }
    }
  });
}

TEST_CASE("what is not finite is counted by encoders and found in payloads, wherever it lies", "[codec]") {
  OnEverySimdTarget([] {
    for (const float bad : {std::numeric_limits<float>::infinity(), -std::numeric_limits<float>::infinity(),
                            std::numeric_limits<float>::quiet_NaN()}) {
      for (size_t at = 0; at < 40; ++at) {
        std::vector<float> values(40, 1.0f);
        values[at] = bad;
        std::vector<uint8_t> bytes(160);
        for (const CodecId codec : {CodecId::kFp32, CodecId::kFp16, CodecId::kBf16}) {
          CHECK(Encode(codec, values.data(), values.size(), bytes.data()).non_finite == 1);
        }
        CHECK_FALSE(AllFinite32(reinterpret_cast<const uint8_t*>(values.data()), values.size()));
        std::vector<uint16_t> halves(40, 0x3C00);
        halves[at] = static_cast<uint16_t>(std::isnan(bad) ? 0x7E00 : 0x7C00);
        CHECK_FALSE(AllFinite(CodecId::kFp16, reinterpret_cast<const uint8_t*>(halves.data()), 40));
        halves[at] = static_cast<uint16_t>(std::isnan(bad) ? 0x7FC0 : 0xFF80);
        CHECK_FALSE(AllFinite(CodecId::kBf16, reinterpret_cast<const uint8_t*>(halves.data()), 40));
      }
    }
  });
}

TEST_CASE("codec names are parsed, and unknown ones refused", "[codec]") {
  CHECK(*ParseValueCodec("fp32") == CodecId::kFp32);
  CHECK(*ParseValueCodec("fp16") == CodecId::kFp16);
  CHECK(*ParseValueCodec("bf16") == CodecId::kBf16);
  CHECK(absl::IsInvalidArgument(ParseValueCodec("fp8").status()));
  CHECK_FALSE(KnownCodec(7));
}

}  // namespace recon
