#include "server/tuning/codec_tuner.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/codec/codec.h"

namespace recon {
namespace {

// A window is long enough for a rate on a machine that others use, too.
constexpr absl::Duration kWindowTime = absl::Milliseconds(700);
constexpr uint64_t kWindowSteps = 16;
// An idle worker has no pushes to use a new choice with: after this time nobody waits for it.
constexpr absl::Duration kConfirmTimeout = absl::Seconds(3);

}  // namespace

struct CodecTuner::Sums {
  uint64_t steps = 0, pushes = 0, workers = 0;
  double steps_per_second = 0;
  double compute_seconds = 0, stall_seconds = 0, encode_seconds = 0, exchange_seconds = 0;
  double push_bytes = 0, pull_bytes = 0;
  double cpu_seconds = 0, cpu_wait_seconds = 0;
  double residual_ratio = 0;
  bool share_memory = true;
};

void CodecTuner::Publish() {
  choice_.set_version(choice_.version() + 1);
  choice_.set_push(controller_.rung().push.ToString());
  choice_.set_pull(CodecName(controller_.rung().pull));
}

void CodecTuner::Restart() {
  window_.Cancel();
  controller_.Restart();
}

bool CodecTuner::AllUseIt() const {
  return std::all_of(window_.works().begin(), window_.works().end(),
                     [this](const auto& entry) { return entry.second.choice() == choice_.version(); });
}

CodecTuner::Sums CodecTuner::SumsOfAll() const {
  Sums sums;
  for (const auto& [worker, work] : window_.Done()) {
    ++sums.workers;
    sums.steps += work.steps();
    sums.steps_per_second += static_cast<double>(work.steps()) / work.step_seconds();
    sums.compute_seconds += work.compute_seconds();
    sums.stall_seconds += work.stall_seconds();
    sums.pushes += work.pushes();
    sums.encode_seconds += work.encode_seconds();
    sums.exchange_seconds += work.exchange_seconds();
    sums.push_bytes += static_cast<double>(work.push_bytes());
    sums.pull_bytes += static_cast<double>(work.pull_bytes());
    sums.cpu_seconds += work.cpu_seconds();
    sums.cpu_wait_seconds += work.cpu_wait_seconds();
    sums.share_memory = sums.share_memory && work.shares_memory();
    sums.residual_ratio = std::max(sums.residual_ratio, work.residual_ratio());
  }
  return sums;
}

bool CodecTuner::Tick(absl::Time now) {
  if (!in_use() || !window_.SameWorkers()) window_.Cancel();
  if (!in_use()) return false;
  if (!window_.begun()) {
    if (AllUseIt() || now - changed_at_ >= kConfirmTimeout) window_.Begin(now);
    return false;
  }
  if (now - window_.begun_at() < kWindowTime) return false;
  const Sums sums = SumsOfAll();
  if (sums.steps < kWindowSteps || sums.pushes == 0) return false;
  window_.Cancel();
  const auto steps = static_cast<double>(sums.steps);
  const auto pushes = static_cast<double>(sums.pushes);
  CodecController::Window window;
  window.step_seconds = static_cast<double>(sums.workers) / sums.steps_per_second;
  window.compute_seconds = sums.compute_seconds / steps;
  window.stall_seconds = sums.stall_seconds / steps;
  window.encode_seconds = sums.encode_seconds / pushes;
  window.push_bytes = sums.push_bytes / pushes;
  window.pull_bytes = sums.pull_bytes / pushes;
  if (sums.exchange_seconds > 0) {
    window.link_bytes_per_second = std::max(sums.push_bytes, sums.pull_bytes) / sums.exchange_seconds;
  }
  if (sums.cpu_seconds > 0) window.cpu_wait = std::max(0.0, sums.cpu_wait_seconds / sums.cpu_seconds);
  window.residual_ratio = sums.residual_ratio;
  window.no_network = sums.share_memory;
  if (!controller_.Observe(window)) return false;
  Publish();
  changed_at_ = now;
  return true;
}

}  // namespace recon
