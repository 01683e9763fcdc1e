#include "server/tuning/policy_controller.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "common/base/check.h"

namespace recon {
namespace {

constexpr int kFirstBound = 2;
// Local steps of the first rung that has some; each further has so many times as many.
constexpr uint32_t kFirstLocalSteps = 4;
// Of the workers' time: from here on the bound costs too much, and so does the link.
constexpr double kWaitingShare = 0.05;
constexpr double kLinkShare = 0.5;
// So many windows in a row have to say the same.
constexpr int kPatience = 2;
// A step is watched for so many windows. It has to go when so many in a row have a loss that is higher, by
// this and by a share of what it was at first: near its end a loss is small, and uneven.
constexpr int kWatched = 6;
constexpr int kRisen = 3;
constexpr double kRises = 1.3;
constexpr double kOfFirst = 0.05;
// Windows that the loss before a step is the mean of.
constexpr size_t kLosses = 4;

std::string Name(const PolicyController::Choice& choice) {
  const std::string bound =
      choice.bound < 0 ? "no bound"
                       : absl::StrCat("a bound of ", choice.bound, choice.bound == 1 ? " step" : " steps");
  return choice.local_steps == 0 ? bound : absl::StrCat(choice.local_steps, " local steps, ", bound);
}

}  // namespace

PolicyController::PolicyController(const Limits& limits) {
  const int first = limits.bound_max < 0 ? kFirstBound : std::min(kFirstBound, limits.bound_max);
  ladder_.push_back({first, 0});
  if (limits.bound_max != first) ladder_.push_back({limits.bound_max, 0});
  for (uint64_t steps = kFirstLocalSteps; limits.local_steps_max > 0; steps *= kFirstLocalSteps) {
    const auto allowed = static_cast<uint32_t>(std::min<uint64_t>(steps, limits.local_steps_max));
    ladder_.push_back({limits.bound_max, allowed});
    if (allowed == limits.local_steps_max) break;
  }
  highest_ = ladder_.size() - 1;
}

bool PolicyController::MoveTo(size_t rung, std::string reason) {
  RECON_CHECK_LT(rung, ladder_.size());
  reason_ = absl::StrCat(reason, ": ", Name(ladder_[rung]));
  rung_ = rung;
  windows_wanted_ = 0;
  losses_.clear();
  return true;
}

bool PolicyController::LossHasRisen(const Window& window) {
  const double margin = std::max(kRises * loss_before_ - loss_before_, kOfFirst * *first_loss_);
  windows_risen_ = window.loss > loss_before_ + margin ? windows_risen_ + 1 : 0;
  return windows_risen_ >= kRisen;
}

size_t PolicyController::Wanted(const Window& window, std::string* why) const {
  if (window.link_share > kLinkShare && window.codec_settled) {
    // The next that pushes less often.
    for (size_t rung = rung_ + 1; rung <= highest_; ++rung) {
      if (ladder_[rung].local_steps == 0) continue;
      *why = absl::StrFormat("workers wait for the link %.0f %% of their time", 100 * window.link_share);
      return rung;
    }
  }
  if (window.waiting_share > kWaitingShare && rung_ < highest_ &&
      ladder_[rung_ + 1].bound != ladder_[rung_].bound) {
    *why = absl::StrFormat(
        "workers wait for slower ones %.0f %% of their time (a step is computed in %.0f to %.0f ms)",
        100 * window.waiting_share, 1e3 * window.fastest_seconds, 1e3 * window.slowest_seconds);
    return rung_ + 1;
  }
  return rung_;
}

bool PolicyController::Observe(const Window& window) {
  if (!first_loss_) first_loss_ = std::abs(window.loss);
  losses_.push_back(window.loss);
  if (losses_.size() > kLosses) losses_.pop_front();
  if (windows_watched_ > 0) {
    --windows_watched_;
    if (LossHasRisen(window)) {
      windows_watched_ = 0;
      highest_ = before_;
      return MoveTo(before_,
                    absl::StrFormat("the loss has risen from %.3g to %.3g, gradients are %.1f updates old",
                                    loss_before_, window.loss, window.staleness));
    }
    // Nothing further before it is known to be good.
    return false;
  }
  std::string why;
  const size_t wanted = Wanted(window, &why);
  windows_wanted_ = wanted != rung_ && wanted == wanted_ ? windows_wanted_ + 1 : 1;
  wanted_ = wanted;
  if (wanted == rung_ || windows_wanted_ < kPatience) return false;
  windows_watched_ = kWatched;
  windows_risen_ = 0;
  before_ = rung_;
  loss_before_ = std::accumulate(losses_.begin(), losses_.end(), 0.0) / static_cast<double>(losses_.size());
  return MoveTo(wanted, why);
}

}  // namespace recon
