#pragma once

#include <cstdint>

namespace recon {

// What the loss is multiplied by before backward, so that small gradients do not vanish in FP16: half after
// values that did not stay finite, twice after many batches that did (Micikevicius et al., "Mixed precision
// training", ICLR 2018, section 3.2; "dynamic loss scaling").
//
// Powers of two: scaling and unscaling rounds nothing. Threads: one at a time.
class LossScaler {
 public:
  static constexpr float kStart = 65536;  // 2^16.
  static constexpr float kMin = 1;
  static constexpr float kMax = 16'777'216;  // 2^24: beyond, what FP16 rounds off is no larger than FP32's.
  static constexpr uint32_t kGoodBatches = 2000;

  // A power of two between the two bounds.
  explicit LossScaler(float start = kStart) : scale_(start) {}

  float scale() const { return scale_; }
  // Whether less cannot help: gradients are no smaller without scaling.
  bool at_least() const { return scale_ <= kMin; }

  void NoteFinite() {
    if (++good_ < kGoodBatches) return;
    good_ = 0;
    if (scale_ < kMax) scale_ *= 2;
  }
  void NoteOverflow() {
    good_ = 0;
    if (scale_ > kMin) scale_ /= 2;
  }

 private:
  float scale_;
  uint32_t good_ = 0;
};

}  // namespace recon
