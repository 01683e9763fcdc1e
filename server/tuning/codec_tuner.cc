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
};

void CodecTuner::Publish() {
  choice_.set_version(choice_.version() + 1);
  choice_.set_push(controller_.rung().push.ToString());
  choice_.set_pull(CodecName(controller_.rung().pull));
}

absl::Status CodecTuner::Report(WorkerId worker, const CodecWork& work) {
  const std::pair<const char*, double> numbers[] = {
      {"step_seconds", work.step_seconds()},         {"compute_seconds", work.compute_seconds()},
      {"stall_seconds", work.stall_seconds()},       {"encode_seconds", work.encode_seconds()},
      {"exchange_seconds", work.exchange_seconds()}, {"cpu_seconds", work.cpu_seconds()},
      {"cpu_wait_seconds", work.cpu_wait_seconds()}, {"residual_ratio", work.residual_ratio()},
  };
  for (const auto& [name, number] : numbers) {
    if (!std::isfinite(number) || number < 0) {
      return absl::InvalidArgumentError(absl::StrCat("codec work: ", name, " is ", number));
    }
  }
  works_[worker] = work;
  return absl::OkStatus();
}

bool CodecTuner::AllUseIt() const {
  return std::all_of(works_.begin(), works_.end(),
                     [this](const auto& entry) { return entry.second.choice() == choice_.version(); });
}

bool CodecTuner::SameWorkers() const {
  return works_.size() == begin_.size() &&
         std::equal(works_.begin(), works_.end(), begin_.begin(), [](const auto& now, const auto& before) {
           return now.first == before.first && now.second.steps() >= before.second.steps();
         });
}

CodecTuner::Sums CodecTuner::SumsSinceBegin() const {
  Sums sums;
  for (const auto& [worker, work] : works_) {
    const CodecWork& before = begin_.at(worker);
    const uint64_t steps = work.steps() - before.steps();
    const double seconds = work.step_seconds() - before.step_seconds();
    if (steps == 0 || seconds <= 0) continue;  // It evaluates, or waits for work.
    ++sums.workers;
    sums.steps += steps;
    sums.steps_per_second += static_cast<double>(steps) / seconds;
    sums.compute_seconds += work.compute_seconds() - before.compute_seconds();
    sums.stall_seconds += work.stall_seconds() - before.stall_seconds();
    sums.pushes += work.pushes() - before.pushes();
    sums.encode_seconds += work.encode_seconds() - before.encode_seconds();
    sums.exchange_seconds += work.exchange_seconds() - before.exchange_seconds();
    sums.push_bytes += static_cast<double>(work.push_bytes()) - static_cast<double>(before.push_bytes());
    sums.pull_bytes += static_cast<double>(work.pull_bytes()) - static_cast<double>(before.pull_bytes());
    sums.cpu_seconds += work.cpu_seconds() - before.cpu_seconds();
    sums.cpu_wait_seconds += work.cpu_wait_seconds() - before.cpu_wait_seconds();
    sums.residual_ratio = std::max(sums.residual_ratio, work.residual_ratio());
  }
  return sums;
}

bool CodecTuner::Tick(absl::Time now) {
  if (works_.empty()) {
    measuring_ = false;
    return false;
  }
  if (measuring_ && !SameWorkers()) measuring_ = false;
  if (!measuring_) {
    if (!AllUseIt() && now - changed_at_ < kConfirmTimeout) return false;
    measuring_ = true;
    begin_ = works_;
    begun_at_ = now;
    return false;
  }
  if (now - begun_at_ < kWindowTime) return false;
  const Sums sums = SumsSinceBegin();
  if (sums.steps < kWindowSteps || sums.pushes == 0) return false;
  measuring_ = false;
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
  if (!controller_.Observe(window)) return false;
  Publish();
  changed_at_ = now;
  return true;
}

}  // namespace recon
