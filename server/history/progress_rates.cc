#include "server/history/progress_rates.h"

#include <algorithm>

namespace recon {
namespace {

// Reports that are closer say little: heartbeats come every 300 ms, and a step may be longer.
constexpr int64_t kBetweenMs = 900;
// Sums grow when a step ends. One that has not ended for so long leaves nothing to say.
constexpr int64_t kStepMs = 5000;

float Share(double before, double after, double of) {
  const double share = (after - before) / of;
  return std::isfinite(share) ? static_cast<float>(std::clamp(share, 0.0, 1.0)) : NAN;
}

float Rate(uint64_t before, uint64_t after, double seconds) {
  return after < before ? NAN : static_cast<float>(static_cast<double>(after - before) / seconds);
}

WorkerRates Between(const StepWork& before, const StepWork& after, double seconds, double waits_share) {
  WorkerRates rates;
  rates.push_bytes_per_second = Rate(before.push_bytes(), after.push_bytes(), seconds);
  rates.pull_bytes_per_second = Rate(before.pull_bytes(), after.pull_bytes(), seconds);
  if (after.pushes() > before.pushes()) {
    rates.pushes = after.pushes() - before.pushes();
    const double exchange = after.exchange_seconds() - before.exchange_seconds();
    if (exchange >= 0 && std::isfinite(exchange))
      rates.push_latency_ms = static_cast<float>(1000 * exchange / static_cast<double>(rates.pushes));
  }
  const double stepped = after.step_seconds() - before.step_seconds();
  rates.computing = Share(before.compute_seconds(), after.compute_seconds(), stepped);
  const float stalled = Share(before.stall_seconds(), after.stall_seconds(), stepped);
  if (std::isnan(stalled)) return rates;
  rates.waiting = std::min(static_cast<float>(waits_share), stalled);
  rates.link = stalled - rates.waiting;
  return rates;
}

}  // namespace

WorkerRates ProgressRates::Note(const MemberStatus& member) {
  const WorkerProgress& progress = member.progress();
  Worker& worker = workers_[member.name()];
  const int64_t passed_ms = progress.wire_unix_ms() - worker.reported_ms;
  const bool goes_on = worker.incarnation == member.incarnation() && worker.reported_ms > 0 &&
                       progress.step_work().steps() >= worker.work.steps() && passed_ms >= 0;
  const bool stepped = progress.step_work().steps() > worker.work.steps();
  if (goes_on && passed_ms < (stepped ? kBetweenMs : kStepMs)) return worker.rates;
  worker.rates = goes_on ? Between(worker.work, progress.step_work(), static_cast<double>(passed_ms) / 1000,
                                   member.waits_share())
                         : WorkerRates();
  worker.incarnation = member.incarnation();
  worker.reported_ms = progress.wire_unix_ms();
  worker.work = progress.step_work();
  return worker.rates;
}

const WorkerRates* ProgressRates::Find(const std::string& name) const {
  const auto found = workers_.find(name);
  return found == workers_.end() ? nullptr : &found->second.rates;
}

}  // namespace recon
