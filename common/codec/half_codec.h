#pragma once

#include <cstddef>
#include <cstdint>

#include "common/codec/codec.h"

namespace recon {

// FP16 (IEEE binary16) and BF16 kernels in Highway: the same bytes on every SIMD target.
// Byte pointers need no alignment.

// FP16 values are divided by 2^exponent before they are rounded, and multiplied by it when they come back.
// `exponent` is in the range of PartHeader.exponent.
EncodeStats EncodeFp16(const float* values, size_t count, uint8_t* out, int exponent);
inline EncodeStats EncodeFp16(const float* values, size_t count, uint8_t* out) {
  return EncodeFp16(values, count, out, /*exponent=*/0);
}
EncodeStats EncodeBf16(const float* values, size_t count, uint8_t* out);
void DecodeFp16(const uint8_t* bytes, size_t count, float* out, int exponent = 0);
void DecodeBf16(const uint8_t* bytes, size_t count, float* out);

uint64_t CountNonFinite(const float* values, size_t count);
// `exponent_mask` is the format's exponent bits: all of them set means infinity or NaN.
bool AllFinite16(const uint8_t* bytes, size_t count, uint16_t exponent_mask);
bool AllFinite32(const uint8_t* bytes, size_t count);

}  // namespace recon
