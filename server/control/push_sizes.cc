#include "server/control/push_sizes.h"

#include <algorithm>
#include <cstddef>

#include "common/base/check.h"
#include "server/scheduler/local_steps.h"

namespace recon {

uint64_t StepSamples(const JobConfig& job, uint64_t fixed) {
  if (job.bound() != 0 || job.has_local()) return 0;
  return job.policy().step_samples_constant() ? fixed : job.policy().step_samples();
}

void PushSizes::NoteFastest(const Membership& membership) {
  fastest_batch_seconds_ = 0;
  for (const auto& [worker, member] : membership.members()) {
    const double seconds = member.progress.batch_seconds();
    const bool first = fastest_batch_seconds_ == 0;
    if (!member.gone && seconds > 0 && (first || seconds < fastest_batch_seconds_)) {
      fastest_batch_seconds_ = seconds;
    }
  }
}

uint32_t PushSizes::LocalStepsOf(const Membership::Member& member, const JobConfig& job) const {
  const uint32_t steps = job.local().steps();
  if (!job.policy().local_steps_by_speed()) return steps;
  return LocalStepsBySpeed(steps, member.progress.batch_seconds(), fastest_batch_seconds_);
}

uint32_t PushSizes::BatchesOf(WorkerId worker, const Membership& membership, const JobConfig& job,
                              uint64_t fixed) const {
  const Membership::Member* mine = membership.Find(worker);
  RECON_CHECK(mine != nullptr, "a push of nobody");
  const uint64_t samples = StepSamples(job, fixed);
  if (samples == 0) return LocalStepsOf(*mine, job);
  // Those who compute share it. (At the start nobody has yet.)
  size_t workers = 0;
  size_t rank = 0;
  const bool begun = membership.AnyComputes();
  for (const auto& [other, member] : membership.members()) {
    if (member.gone || (begun && !member.computes && other != worker)) continue;
    if (other < worker) ++rank;
    ++workers;
  }
  const uint64_t batches = (samples + job.batch_samples() / 2) / job.batch_samples();
  return BatchesOfStep(batches, std::max<size_t>(1, workers), rank);
}

}  // namespace recon
