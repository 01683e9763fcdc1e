#include "server/sync/step_quorum.h"

#include <algorithm>
#include <utility>

namespace recon {
namespace {

// The mean is of about so many steps.
constexpr int kSteps = 8;
// In which none counts for more than so many times it: an evaluation may have been in between.
constexpr int kUsualAtMost = 3;

}  // namespace

void StepQuorum::NoteTook(absl::Duration took) {
  // The first step has what went before the training in it.
  if (!std::exchange(begun_, true)) return;
  took_ = took_ ? *took_ + (std::min(took, kUsualAtMost * *took_) - *took_) / kSteps : took;
}

absl::Time StepQuorum::Note(uint64_t step, size_t pushed, size_t awaited, absl::Time now) {
  if (!on()) return absl::InfiniteFuture();
  if (step_ != step) {
    // The one before was closed with its last push.
    if (step_ && !reached_) NoteTook(now - opened_);
    step_ = step;
    opened_ = now;
    reached_.reset();
  }
  if (pushed < workers_) return absl::InfiniteFuture();
  if (!reached_) {
    reached_ = now;
    NoteTook(now - opened_);
  }
  return awaited == 0 ? absl::InfiniteFuture() : *reached_ + grace();
}

absl::Duration StepQuorum::grace() const {
  if (grace_) return *grace_;
  return std::max(kGraceMin, took_.value_or(absl::ZeroDuration()) / 2);
}

}  // namespace recon
