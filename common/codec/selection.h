#pragma once

#include <cmath>
#include <cstdint>

#include "common/codec/random.h"
#include "common/codec/wire_format.h"

namespace recon {

// What the encoders of CPU and GPU must agree on so that their bytes are equal. Pure functions.

RECON_HOST_DEVICE inline uint32_t BitsOf(float value) {
  union {
    float f;
    uint32_t u;
  } both;
  both.f = value;
  return both.u;
}
RECON_HOST_DEVICE inline float FloatOf(uint32_t bits) {
  union {
    float f;
    uint32_t u;
  } both;
  both.u = bits;
  return both.f;
}

// Orders floats by magnitude, as integers.
RECON_HOST_DEVICE inline uint32_t MagnitudeBits(float value) { return BitsOf(value) & 0x7FFFFFFF; }

// What FP16 values are multiplied by that were divided by it before they were rounded.
RECON_HOST_DEVICE inline float PowerOfTwo(int exponent) {
  return FloatOf(static_cast<uint32_t>(127 + exponent) << 23);
}

// The exponent of a page in FP16 whose largest magnitude has these bits: divided by 2^exponent and rounded,
// it is in [2^15, 65504]. 0 for a page of zeros, and for one that is not to be sent, with what is not finite.
RECON_HOST_DEVICE inline int ExponentFor(uint32_t largest_magnitude) {
  if (largest_magnitude == 0 || largest_magnitude >= 0x7F800000) return 0;
  // Half of the last bit that FP16 keeps may carry into the exponent.
  const int exponent = static_cast<int>((largest_magnitude + 0x1000) >> 23) - (127 + 15);
  return exponent < kExponentMin ? kExponentMin : exponent > kExponentMax ? kExponentMax : exponent;
}

// Bits of the magnitudes from which on a value that is divided by 2^exponent rounds to infinity in FP16, and
// up to which it becomes 0.
struct HalfRange {
  uint32_t infinity;
  uint32_t zero;
};
RECON_HOST_DEVICE inline HalfRange HalfRangeFor(int exponent) {
  return {BitsOf(65520.0f * PowerOfTwo(exponent)), BitsOf(0x1p-25f * PowerOfTwo(exponent))};
}

// How many of `count` values (1 at least) a ratio in (0, 1] is.
inline uint32_t ShareOf(double ratio, uint32_t count) {
  const auto share = static_cast<uint32_t>(std::ceil(ratio * count));
  return share < 1 ? 1 : share > count ? count : share;
}

// The smallest way to write `entries` indices of a page: the list, unless another is smaller.
struct IndexSize {
  IndexCoding coding;
  uint32_t bytes;
};
RECON_HOST_DEVICE inline IndexSize SmallestCoding(uint32_t page_size, uint32_t entries,
                                                  uint32_t delta_bytes) {
  if (entries == page_size) return {IndexCoding::kAll, 0};
  IndexSize smallest = {IndexCoding::kList, 2 * entries};
  const uint32_t bitmap_bytes = (page_size + 7) / 8;
  if (bitmap_bytes < smallest.bytes) smallest = {IndexCoding::kBitmap, bitmap_bytes};
  if (delta_bytes < smallest.bytes) smallest = {IndexCoding::kDelta, delta_bytes};
  return smallest;
}

}  // namespace recon
