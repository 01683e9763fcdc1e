#pragma once

#include <cstddef>
#include <cstdint>

#include "absl/strings/string_view.h"

namespace recon {

// Values of the safetensors format's types as FP32, what parameters are. Pure functions; bytes need no
// alignment.

// F32, F64, F16, BF16, F8_E4M3 and F8_E5M2 (Micikevicius et al., "FP8 formats for deep learning", 2022) are
// converted; other types are not of parameters.
bool ConvertsToFloat(absl::string_view dtype);

// What F64 values lost; others become FP32 without loss.
struct Rounding {
  uint64_t rounded = 0;     // Finite values that are others now; ties went to even.
  uint64_t overflowed = 0;  // Of those, how many are infinite now.
};

// `dtype` is one that ConvertsToFloat(). Adds to `rounding`.
void ToFloat(absl::string_view dtype, const char* bytes, size_t count, float* out, Rounding* rounding);
// Bytes of one of its values.
size_t FloatWidth(absl::string_view dtype);

}  // namespace recon
