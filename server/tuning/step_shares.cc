#include "server/tuning/step_shares.h"

#include <algorithm>
#include <cmath>

#include "absl/strings/str_format.h"

namespace recon {
namespace {

// Long enough for a share of time; a slow worker's goes on until it has made a step.
constexpr absl::Duration kWindow = absl::Seconds(2);
// Who waits for less is not held up.
constexpr double kHeldUp = 0.1;

bool Follows(const StepWork& now, const StepWork& before) {
  return now.steps() >= before.steps() && now.step_seconds() >= before.step_seconds() &&
         now.stall_seconds() >= before.stall_seconds() && now.exchange_seconds() >= before.exchange_seconds();
}

bool IsSum(const StepWork& work) {
  return std::isfinite(work.step_seconds()) && std::isfinite(work.stall_seconds()) &&
         std::isfinite(work.exchange_seconds());
}

}  // namespace

void StepShares::Report(WorkerId worker, const StepWork& work, double waited_seconds, absl::Time now) {
  if (!IsSum(work)) return;
  const auto [found, added] = workers_.try_emplace(worker);
  Window& window = found->second;
  const bool goes_on = !added && Follows(work, window.begin) && waited_seconds >= window.waited_begin;
  if (goes_on && (now - window.begun_at < kWindow || work.steps() == window.begin.steps())) return;
  if (goes_on) {
    const double steps = static_cast<double>(work.steps() - window.begin.steps());
    const double step = work.step_seconds() - window.begin.step_seconds();
    const double stall = work.stall_seconds() - window.begin.stall_seconds();
    const double exchange = work.exchange_seconds() - window.begin.exchange_seconds();
    // Of what its training waited for pushes, the part that their replies waited for others'.
    const double for_others =
        exchange > 0 ? std::min(1.0, (waited_seconds - window.waited_begin) / exchange) : 0;
    window.share.waits = step > 0 ? std::min(1.0, stall / step) * for_others : 0;
    window.share.own_seconds = step / steps * (1 - window.share.waits);
    window.known = true;
  }
  window.begin = work;
  window.waited_begin = waited_seconds;
  window.begun_at = now;
}

const StepShares::Share* StepShares::Find(WorkerId worker) const {
  const auto found = workers_.find(worker);
  return found == workers_.end() || !found->second.known ? nullptr : &found->second.share;
}

std::string StepShares::WhoHoldsUp(const std::vector<Worker>& workers) {
  const auto slowest = std::max_element(workers.begin(), workers.end(), [](const Worker& a, const Worker& b) {
    return a.share.own_seconds < b.share.own_seconds;
  });
  double waits = 0;
  int held_up = 0;
  for (auto worker = workers.begin(); worker != workers.end(); ++worker) {
    if (worker == slowest || worker->share.waits < kHeldUp) continue;
    waits += worker->share.waits;
    ++held_up;
  }
  if (held_up == 0) return "";
  return absl::StrFormat("%s (%.3f s a batch) holds up %d worker%s, which wait%s %.0f %% of the time",
                         slowest->name, slowest->batch_seconds, held_up, held_up == 1 ? "" : "s",
                         held_up == 1 ? "s" : "", 100 * waits / held_up);
}

}  // namespace recon
