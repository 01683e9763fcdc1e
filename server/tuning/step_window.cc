#include "server/tuning/step_window.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/check.h"

namespace recon {

absl::Status StepWindow::Report(WorkerId worker, const StepWork& work) {
  const std::pair<const char*, double> numbers[] = {
      {"step_seconds", work.step_seconds()},         {"compute_seconds", work.compute_seconds()},
      {"stall_seconds", work.stall_seconds()},       {"encode_seconds", work.encode_seconds()},
      {"exchange_seconds", work.exchange_seconds()}, {"cpu_seconds", work.cpu_seconds()},
      {"cpu_wait_seconds", work.cpu_wait_seconds()}, {"residual_ratio", work.residual_ratio()},
  };
  for (const auto& [name, number] : numbers) {
    if (!std::isfinite(number) || number < 0) {
      return absl::InvalidArgumentError(absl::StrCat("step work: ", name, " is ", number));
    }
  }
  works_[worker] = work;
  return absl::OkStatus();
}

void StepWindow::Begin(absl::Time now) {
  begun_ = true;
  begun_at_ = now;
  begin_ = works_;
}

bool StepWindow::SameWorkers() const {
  return works_.size() == begin_.size() &&
         std::equal(works_.begin(), works_.end(), begin_.begin(), [](const auto& now, const auto& before) {
           const StepWork& work = now.second;
           const StepWork& began = before.second;
           return now.first == before.first && work.steps() >= began.steps() &&
                  work.step_seconds() >= began.step_seconds() &&
                  work.compute_seconds() >= began.compute_seconds() &&
                  work.stall_seconds() >= began.stall_seconds() && work.pushes() >= began.pushes() &&
                  work.encode_seconds() >= began.encode_seconds() &&
                  work.exchange_seconds() >= began.exchange_seconds() &&
                  work.push_bytes() >= began.push_bytes() && work.pull_bytes() >= began.pull_bytes();
         });
}

std::map<WorkerId, StepWork> StepWindow::Done() const {
  std::map<WorkerId, StepWork> done;
  for (const auto& [worker, work] : works_) {
    const auto begun = begin_.find(worker);
    RECON_CHECK(begun != begin_.end(), "the window began without a worker that it measures");
    const StepWork& before = begun->second;
    RECON_CHECK_GE(work.steps(), before.steps());
    const double seconds = work.step_seconds() - before.step_seconds();
    if (work.steps() == before.steps() || seconds <= 0) continue;
    StepWork& sums = done[worker] = work;
    sums.set_steps(work.steps() - before.steps());
    sums.set_step_seconds(seconds);
    sums.set_compute_seconds(work.compute_seconds() - before.compute_seconds());
    sums.set_stall_seconds(work.stall_seconds() - before.stall_seconds());
    sums.set_pushes(work.pushes() - before.pushes());
    sums.set_encode_seconds(work.encode_seconds() - before.encode_seconds());
    sums.set_exchange_seconds(work.exchange_seconds() - before.exchange_seconds());
    sums.set_push_bytes(work.push_bytes() - before.push_bytes());
    sums.set_pull_bytes(work.pull_bytes() - before.pull_bytes());
    sums.set_cpu_seconds(work.cpu_seconds() - before.cpu_seconds());
    sums.set_cpu_wait_seconds(work.cpu_wait_seconds() - before.cpu_wait_seconds());
  }
  return done;
}

}  // namespace recon
