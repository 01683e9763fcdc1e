#include "worker/encode/gradient_progress.h"

#include <algorithm>

#include "common/base/check.h"

namespace recon {

GradientProgress::GradientProgress(const ParamLayout* layout) : layout_(layout) {
  for (const ShardPlacement& shard : layout->shards()) missing_.push_back(shard.size);
}

void GradientProgress::Filled(uint64_t offset, uint64_t size) {
  const std::vector<ShardPlacement>& shards = layout_->shards();
  const uint64_t end = offset + size;
  // Shards lie in the order of their offsets.
  auto shard = std::upper_bound(shards.begin(), shards.end(), offset,
                                [](uint64_t at, const ShardPlacement& one) { return at < one.offset; });
  if (shard != shards.begin()) --shard;
  MutexLock lock(&mu_);
  filled_.emplace_back(offset, size);
  for (; shard != shards.end() && shard->offset < end; ++shard) {
    const uint64_t from = std::max(offset, shard->offset);
    const uint64_t to = std::min(end, shard->offset + shard->size);
    if (from >= to) continue;
    const auto number = static_cast<uint32_t>(shard - shards.begin());
    missing_[number] -= static_cast<uint32_t>(to - from);
    if (missing_[number] > 0) continue;
    ready_.push_back(number);
    ready_params_ += shard->size;
  }
}

void GradientProgress::Complete() {
  MutexLock lock(&mu_);
  complete_ = true;
  for (uint32_t number = 0; number < missing_.size(); ++number) {
    if (missing_[number] > 0) ready_.push_back(number);
    missing_[number] = 0;
  }
}

void GradientProgress::Abandon() {
  MutexLock lock(&mu_);
  abandoned_ = true;
}

void GradientProgress::ZeroRest(absl::Span<float> gradient) const {
  RECON_CHECK_EQ(gradient.size(), layout_->params());
  std::vector<std::pair<uint64_t, uint64_t>> filled;
  {
    MutexLock lock(&mu_);
    filled = filled_;
  }
  std::sort(filled.begin(), filled.end());
  uint64_t at = 0;
  for (const auto& [offset, size] : filled) {
    std::fill(gradient.begin() + at, gradient.begin() + offset, 0.0f);
    at = offset + size;
  }
  std::fill(gradient.begin() + at, gradient.end(), 0.0f);
}

GradientProgress::Next GradientProgress::Take(uint64_t params, std::vector<bool>* due) {
  MutexLock lock(&mu_);
  mu_.Await([this, params]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    return abandoned_ || complete_ || ready_params_ >= params;
  });
  if (abandoned_) return Next::kAbandoned;
  due->assign(layout_->shard_count(), false);
  for (const uint32_t number : ready_) (*due)[number] = true;
  ready_.clear();
  ready_params_ = 0;
  return complete_ ? Next::kLast : Next::kSome;
}

}  // namespace recon
