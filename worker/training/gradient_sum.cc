#include "worker/training/gradient_sum.h"

#include <algorithm>

#include "common/base/check.h"
#include "common/optim/optimizer_kernels.h"

namespace recon {

void GradientSum::Add(absl::Span<const float> gradient, uint64_t samples,
                      const std::vector<uint64_t>& versions, uint64_t epoch) {
  RECON_CHECK_EQ(gradient.size(), layout_->params());
  RECON_CHECK_EQ(versions.size(), samples_.size());
  sum_.resize(layout_->params());
  AddWeighted(gradient.data(), static_cast<float>(samples), sum_.size(), sum_.data());
  for (size_t i = 0; i < samples_.size(); ++i) {
    if (samples_[i] == 0) {
      versions_[i] = versions[i];
      epochs_[i] = epoch;
    }
    samples_[i] += samples;
  }
}

GradientSum::Taken GradientSum::Take(const std::vector<bool>& due, uint64_t epoch, absl::Span<float> mean) {
  RECON_CHECK_EQ(mean.size(), layout_->params());
  RECON_CHECK(due.empty() || due.size() == samples_.size());
  sum_.resize(layout_->params());
  Taken taken;
  taken.samples.resize(samples_.size());
  taken.versions.resize(samples_.size());
  for (uint32_t i = 0; i < layout_->shard_count(); ++i) {
    const ShardPlacement& shard = layout_->shards()[i];
    const auto out = mean.begin() + static_cast<ptrdiff_t>(shard.offset);
    if ((!due.empty() && !due[i]) || samples_[i] == 0) {
      std::fill(out, out + shard.size, 0.0f);
      continue;
    }
    const auto inverse = static_cast<float>(1.0 / static_cast<double>(samples_[i]));
    const auto from = sum_.begin() + static_cast<ptrdiff_t>(shard.offset);
    std::transform(from, from + shard.size, out, [inverse](float sum) { return sum * inverse; });
    std::fill(from, from + shard.size, 0.0f);
    taken.samples[i] = static_cast<uint32_t>(std::min<uint64_t>(samples_[i], UINT32_MAX));
    taken.versions[i] = epochs_[i] == epoch ? versions_[i] : 0;
    samples_[i] = 0;
  }
  return taken;
}

bool GradientSum::holds() const {
  return std::any_of(samples_.begin(), samples_.end(), [](uint64_t samples) { return samples > 0; });
}

void GradientSum::Clear() {
  std::fill(sum_.begin(), sum_.end(), 0.0f);
  std::fill(samples_.begin(), samples_.end(), 0);
}

}  // namespace recon
