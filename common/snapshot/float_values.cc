#include "common/snapshot/float_values.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <limits>
#include <vector>

namespace recon {
namespace {

float FromBits(uint32_t bits) {
  float value;
  std::memcpy(&value, &bits, sizeof(value));
  return value;
}

// How a type of 8 or 16 bits divides them, behind the sign.
struct SmallFloat {
  int exponent_bits;
  int mantissa_bits;
  // Whether the highest exponent is that of infinities and NaNs; else only all ones are a NaN.
  bool infinities;
};
constexpr SmallFloat kF16 = {5, 10, true};
constexpr SmallFloat kE5M2 = {5, 2, true};
constexpr SmallFloat kE4M3 = {4, 3, false};

float Widen(const SmallFloat& type, uint32_t bits) {
  const uint32_t mantissa_ones = (1u << type.mantissa_bits) - 1;
  const uint32_t exponent_ones = (1u << type.exponent_bits) - 1;
  const uint32_t mantissa = bits & mantissa_ones;
  const uint32_t exponent = bits >> type.mantissa_bits & exponent_ones;
  const uint32_t sign = bits >> (type.mantissa_bits + type.exponent_bits) << 31;
  if (exponent == exponent_ones && (type.infinities || mantissa == mantissa_ones)) {
    return FromBits(sign | 0x7f800000u | mantissa << (23 - type.mantissa_bits));
  }
  const int bias = static_cast<int>(exponent_ones >> 1);
  const int power = std::max(static_cast<int>(exponent), 1) - bias - type.mantissa_bits;
  const uint32_t whole = mantissa | (exponent == 0 ? 0 : mantissa_ones + 1);
  const float magnitude = std::ldexp(static_cast<float>(whole), power);
  return sign == 0 ? magnitude : -magnitude;
}

std::vector<float> Table(const SmallFloat& type) {
  std::vector<float> values(size_t{1} << (1 + type.exponent_bits + type.mantissa_bits));
  for (size_t bits = 0; bits < values.size(); ++bits) values[bits] = Widen(type, static_cast<uint32_t>(bits));
  return values;
}

// Bits is the type whose values are looked up.
template <typename Bits>
void LookUp(const std::vector<float>& table, const char* bytes, size_t count, float* out) {
  for (size_t i = 0; i < count; ++i) {
    Bits bits;
    std::memcpy(&bits, bytes + i * sizeof(bits), sizeof(bits));
    out[i] = table[bits];
  }
}

void FromBf16(const char* bytes, size_t count, float* out) {
  for (size_t i = 0; i < count; ++i) {
    uint16_t bits;
    std::memcpy(&bits, bytes + i * sizeof(bits), sizeof(bits));
    out[i] = FromBits(uint32_t{bits} << 16);
  }
}

void FromDouble(const char* bytes, size_t count, float* out, Rounding* rounding) {
  // Half a step above the largest: from here on values round to infinity.
  constexpr double kInfinite = 0x1.ffffffp127;
  for (size_t i = 0; i < count; ++i) {
    double value;
    std::memcpy(&value, bytes + i * sizeof(value), sizeof(value));
    if (std::isfinite(value) && std::fabs(value) >= kInfinite) {
      out[i] =
          std::copysign(std::numeric_limits<float>::infinity(), static_cast<float>(std::copysign(1, value)));
      ++rounding->rounded;
      ++rounding->overflowed;
      continue;
    }
    out[i] = static_cast<float>(value);
    if (std::isfinite(value) && double{out[i]} != value) ++rounding->rounded;
  }
}

}  // namespace

bool ConvertsToFloat(absl::string_view dtype) { return FloatWidth(dtype) > 0; }

size_t FloatWidth(absl::string_view dtype) {
  if (dtype == "F64") return 8;
  if (dtype == "F32") return 4;
  if (dtype == "F16" || dtype == "BF16") return 2;
  return dtype == "F8_E4M3" || dtype == "F8_E5M2" ? 1 : 0;
}

void ToFloat(absl::string_view dtype, const char* bytes, size_t count, float* out, Rounding* rounding) {
  static const auto& f16 = *new std::vector<float>(Table(kF16));
  static const auto& e4m3 = *new std::vector<float>(Table(kE4M3));
  static const auto& e5m2 = *new std::vector<float>(Table(kE5M2));
  if (dtype == "F32") std::memcpy(out, bytes, count * sizeof(float));
  if (dtype == "F64") FromDouble(bytes, count, out, rounding);
  if (dtype == "F16") LookUp<uint16_t>(f16, bytes, count, out);
  if (dtype == "BF16") FromBf16(bytes, count, out);
  if (dtype == "F8_E4M3") LookUp<uint8_t>(e4m3, bytes, count, out);
  if (dtype == "F8_E5M2") LookUp<uint8_t>(e5m2, bytes, count, out);
}

}  // namespace recon
