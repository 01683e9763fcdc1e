#pragma once

#include <cmath>
#include <cstdint>

#include "common/codec/half_codec.h"
#include "worker/cuda/page_task.h"

namespace recon {

// A block of a GPU's threads (worker/cuda/page_encoder.h) that run one after the other, on a CPU.
struct SequentialBlock {
  template <typename F>
  void ForEach(const F& f) {
    for (uint32_t thread = 0; thread < cuda::kBlockThreads; ++thread) f(thread);
  }
  static uint32_t Add(uint32_t* at, uint32_t value) {
    const uint32_t before = *at;
    *at += value;
    return before;
  }
  static void Mark(uint32_t* bitmap, uint32_t i, bool wanted) {
    if (wanted) bitmap[i / 32] |= 1u << i % 32;
  }
  static float Floor(float value) { return std::floor(value); }
  static uint16_t FloatToHalf(float value) {
    uint16_t half;
    EncodeFp16(&value, 1, reinterpret_cast<uint8_t*>(&half));
    return half;
  }
  static float HalfToFloat(uint16_t half) {
    float value;
    DecodeFp16(reinterpret_cast<const uint8_t*>(&half), 1, &value);
    return value;
  }
};

}  // namespace recon
