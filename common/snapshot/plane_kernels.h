#pragma once

#include <array>
#include <cstddef>

namespace recon {

// Byte planes of FP32 values (FORMAT.md): each value's bits rotated left by one, then all lowest bytes, all
// second bytes, and so on. The same on every SIMD target. Pure; nothing need be aligned.

inline constexpr size_t kPlaneCount = 4;

// `planes` gets 4 x count bytes, plane after plane.
void SplitPlanes(const float* values, size_t count, char* planes);
// Each plane has `count` bytes.
void JoinPlanes(const std::array<const char*, kPlaneCount>& planes, size_t count, float* values);

}  // namespace recon
