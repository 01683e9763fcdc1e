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
