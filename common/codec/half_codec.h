#pragma once

#include <cstddef>
#include <cstdint>

#include "common/codec/codec.h"

namespace recon {

// FP16 (IEEE binary16) and BF16 kernels in Highway: the same bytes on every SIMD target.
// Byte pointers need no alignment.

EncodeStats EncodeFp16(const float* values, size_t count, uint8_t* out);
EncodeStats EncodeBf16(const float* values, size_t count, uint8_t* out);
void DecodeFp16(const uint8_t* bytes, size_t count, float* out);
void DecodeBf16(const uint8_t* bytes, size_t count, float* out);

uint64_t CountNonFinite(const float* values, size_t count);
// `exponent_mask` is the format's exponent bits: all of them set means infinity or NaN.
bool AllFinite16(const uint8_t* bytes, size_t count, uint16_t exponent_mask);
bool AllFinite32(const uint8_t* bytes, size_t count);

}  // namespace recon
