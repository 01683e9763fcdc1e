#include "server/tuning/policy_tuner.h"

#include <algorithm>
#include <cmath>

#include "absl/strings/str_cat.h"

namespace recon {
namespace {

// Long enough for shares of time on a machine that others use, too. A slow worker is given longer to come to
// two steps.
constexpr absl::Duration kWindowTime = absl::Seconds(2);
constexpr absl::Duration kWindowTimeMax = absl::Minutes(1);
constexpr uint64_t kWindowSteps = 2;
// Workers register again, and fill their pipelines.
constexpr absl::Duration kSettles = absl::Seconds(1);

}  // namespace

absl::Status PolicyTuner::Report(WorkerId worker, const StepWork& work, double loss) {
  if (!std::isfinite(loss)) return absl::InvalidArgumentError(absl::StrCat("loss is ", loss));
  // Once each: between two batches it says the same again.
  const auto known = window_.works().find(worker);
  if (known == window_.works().end() || work.steps() > known->second.steps()) {
    loss_sum_ += loss;
    ++losses_;
  }
  return window_.Report(worker, work);
}

void PolicyTuner::Forget(WorkerId worker) { window_.Forget(worker); }

bool PolicyTuner::Due(absl::Time now) const {
  return window_.begun() ? now - window_.begun_at() >= kWindowTime
                         : !window_.works().empty() && now - changed_at_ >= kSettles;
}

bool PolicyTuner::Tick(absl::Time now, const std::map<WorkerId, Pushes>& pushes, bool codec_settled) {
  if (!window_.SameWorkers()) window_.Cancel();
  if (!Due(now)) return false;
  if (!window_.begun()) {
    window_.Begin(now);
    pushes_at_begin_ = pushes;
    loss_sum_ = 0;
    losses_ = 0;
    return false;
  }
  const std::map<WorkerId, StepWork> done = window_.Done();
  const bool all = done.size() == window_.works().size() &&
                   std::all_of(done.begin(), done.end(),
                               [](const auto& entry) { return entry.second.steps() >= kWindowSteps; });
  if (!all && now - window_.begun_at() < kWindowTimeMax) return false;
  window_.Cancel();
  PolicyController::Window window;
  window.codec_settled = codec_settled;
  if (!Measure(pushes, &window) || !controller_.Observe(window)) return false;
  changed_at_ = now;
  return true;
}

bool PolicyTuner::Measure(const std::map<WorkerId, Pushes>& pushes, PolicyController::Window* window) const {
  double workers = 0, counted = 0;
  for (const auto& [worker, work] : window_.Done()) {
    const auto now = pushes.find(worker);
    const auto before = pushes_at_begin_.find(worker);
    // One that registered anew has none of what it had.
    if (now == pushes.end() || before == pushes_at_begin_.end() || now->second.count < before->second.count ||
        now->second.waiting_seconds < before->second.waiting_seconds) {
      return false;
    }
    const double computing = work.compute_seconds() / static_cast<double>(work.steps());
    window->fastest_seconds = workers == 0 ? computing : std::min(window->fastest_seconds, computing);
    window->slowest_seconds = std::max(window->slowest_seconds, computing);
    ++workers;
    // Of what its training waited for pushes, the part that their replies waited for others'.
    const double waited = now->second.waiting_seconds - before->second.waiting_seconds;
    const double for_others =
        work.exchange_seconds() > 0 ? std::min(1.0, waited / work.exchange_seconds()) : 0;
    const double stalled = std::min(1.0, work.stall_seconds() / work.step_seconds());
    window->waiting_share += stalled * for_others;
    window->link_share += stalled * (1 - for_others);
    window->staleness += now->second.staleness - before->second.staleness;
    counted += static_cast<double>(now->second.count - before->second.count);
  }
  if (workers == 0 || losses_ == 0) return false;
  window->waiting_share /= workers;
  window->link_share /= workers;
  window->loss = loss_sum_ / static_cast<double>(losses_);
  window->staleness /= std::max(1.0, counted);
  return true;
}

}  // namespace recon
