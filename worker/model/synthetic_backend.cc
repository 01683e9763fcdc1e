#include "worker/model/synthetic_backend.h"

#include <algorithm>

#include "common/base/hash.h"

namespace recon {
namespace {

// A prime number of values, so that tensors do not start at the same one.
constexpr size_t kNoise = 1'000'003;

float SmallUniform(uint64_t* state) {
  return (static_cast<float>(SplitMix64(state) >> 40) * 0x1.0p-24f - 0.5f) * 2e-3f;
}

}  // namespace

SyntheticBackend::SyntheticBackend(ModelSpec spec, uint64_t seed)
    : spec_(std::move(spec)), noise_(kNoise), seed_(seed) {
  uint64_t state = seed;
  for (float& value : noise_) value = SmallUniform(&state);
}

void SyntheticBackend::InitialValues(uint64_t seed, absl::Span<float> values) const {
  uint64_t state = seed;
  for (float& value : values) value = SmallUniform(&state);
}

absl::StatusOr<BatchResult> SyntheticBackend::ComputeGradient(const Batch& batch, const ParameterView&,
                                                              const GradientTerms& terms,
                                                              absl::Span<float> gradient) {
  // By what is in the batch: whoever computes it, and however often, gets the same gradient.
  uint64_t state = seed_ ^ Hash64(batch.features.data(), batch.features.size() * sizeof(float));
  size_t from = SplitMix64(&state) % noise_.size();
  for (size_t at = 0; at < gradient.size();) {
    const size_t count = std::min(gradient.size() - at, noise_.size() - from);
    const auto noise = noise_.begin() + static_cast<ptrdiff_t>(from);
    const auto out = gradient.begin() + static_cast<ptrdiff_t>(at);
    if (terms.batch_samples == 0 && !terms.add) {
      std::copy_n(noise, count, out);
    } else {
      const float weight =
          terms.LossWeight(batch.samples) * static_cast<float>(batch.samples) / terms.loss_scale;
      for (size_t i = 0; i < count; ++i) {
        const auto k = static_cast<ptrdiff_t>(i);
        out[k] = weight * noise[k] + (terms.add ? out[k] : 0);
      }
    }
    at += count;
    from = 0;
  }
  BatchResult result;
  result.samples = batch.samples;
  return result;
}

absl::StatusOr<BatchResult> SyntheticBackend::Evaluate(const Batch& batch, const ParameterView&) {
  BatchResult result;
  result.samples = batch.samples;
  return result;
}

}  // namespace recon
