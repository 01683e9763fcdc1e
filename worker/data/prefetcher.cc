#include "worker/data/prefetcher.h"

#include <algorithm>
#include <utility>

#include "common/base/check.h"

namespace recon {

Prefetcher::Prefetcher(const Dataset* dataset, std::vector<uint32_t> indices, size_t batch_samples,
                       Lane* lane)
    : dataset_(dataset), indices_(std::move(indices)), batch_samples_(batch_samples), lane_(lane) {
  ReadNext();
}

Prefetcher::~Prefetcher() {
  MutexLock lock(&mu_);
  mu_.Await([this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) { return !reading_; });
}

void Prefetcher::ReadNext() {
  if (position_ >= indices_.size()) return;
  const size_t count = std::min(batch_samples_, indices_.size() - position_);
  const absl::Span<const uint32_t> part = absl::MakeConstSpan(indices_).subspan(position_, count);
  position_ += count;
  {
    MutexLock lock(&mu_);
    RECON_CHECK(!reading_ && !ready_, "a batch is read before the one before was taken");
    reading_ = true;
  }
  lane_->Post([this, part] {
    RECON_CHECK(lane_->IsCurrent());
    Batch batch;
    dataset_->Read(part, &batch);
    MutexLock lock(&mu_);
    RECON_CHECK(reading_);
    next_ = std::move(batch);
    ready_ = true;
    reading_ = false;
  });
}

bool Prefetcher::Next(Batch* batch) {
  {
    MutexLock lock(&mu_);
    mu_.Await([this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) { return !reading_; });
    if (!ready_) return false;
    *batch = std::move(next_);
    ready_ = false;
  }
  ReadNext();
  return true;
}

}  // namespace recon
