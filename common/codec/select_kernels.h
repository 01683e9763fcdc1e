#pragma once

#include <cstddef>
#include <cstdint>

namespace recon {

// Finding the few large values of a page in one pass over memory. Highway kernels: the same results on every
// SIMD target. `selected` has room for `count` + 2 indices and gets those whose magnitude, as the bits of a
// float without its sign, is at least `magnitude_min`, ascending; each function returns how many. NaN counts
// as the largest magnitude. Thread-safe on disjoint memory; `count` is at most 65,536.

size_t Select(const float* values, size_t count, uint32_t magnitude_min, uint32_t* selected);

// residual[i] += gradient[i], and selects among the sums.
size_t AccumulateAndSelect(const float* gradient, size_t count, uint32_t magnitude_min, float* residual,
                           uint32_t* selected);

// velocity[i] = momentum * velocity[i] + gradient[i]; residual[i] += velocity[i]; selects among the
// residuals.
size_t AccumulateMomentumAndSelect(const float* gradient, size_t count, float momentum,
                                   uint32_t magnitude_min, float* velocity, float* residual,
                                   uint32_t* selected);

// The largest magnitude, as bits; 0 of no values.
uint32_t LargestMagnitudeBits(const float* values, size_t count);

// Sum of values[i] squared, in double precision; in one order on every target.
double SumOfSquares(const float* values, size_t count);

}  // namespace recon
