#pragma once

#include <cstddef>
#include <cstdint>

#include "common/codec/codec.h"

namespace recon {

// Eight bits a value with one scale a page and stochastic rounding; FORMAT.md has the arithmetic (Alistarh et
// al., "QSGD", NeurIPS 2017, with one bucket a page). Highway kernels: the same bytes on every SIMD target.

// The scale of `count` values of one page; counts values that are not finite into `stats`.
float Int8Scale(const float* values, size_t count, EncodeStats* stats);
// Encodes one page to `count` bytes. `values` must be finite.
void EncodeInt8Page(const float* values, size_t count, float scale, uint32_t page_seed, uint8_t* out);
// value[i] = bytes[i] * scale.
void DecodeInt8(const uint8_t* bytes, size_t count, float scale, float* values);

}  // namespace recon
