#include "server/control/auto_policy.h"

#include <map>

#include "common/base/check.h"
#include "common/base/log.h"
#include "server/control/policy.h"

namespace recon {

void AutoPolicy::Set(const PolicySettings& settings) {
  settings_ = settings;
  tuner_.reset();
  due_at_ = absl::InfiniteFuture();
  if (IsAuto(settings)) tuner_.emplace(AutoLimits(settings));
}

absl::Status AutoPolicy::Report(WorkerId worker, const StepWork& work, double loss) {
  return tuner_ ? tuner_->Report(worker, work, loss) : absl::OkStatus();
}

void AutoPolicy::Forget(WorkerId worker) {
  if (tuner_) tuner_->Forget(worker);
}

bool AutoPolicy::Choose(absl::Time now, const DataPlaneControl& params, bool codec_settled) {
  if (!tuner_->Due(now)) return false;
  std::map<WorkerId, PolicyTuner::Pushes> pushes;
  for (const auto& [worker, stats] : params.GetStats().workers) {
    pushes[worker] = {stats.pushes, stats.staleness_mean * static_cast<double>(stats.staleness_pushes),
                      stats.waiting_seconds};
  }
  return tuner_->Tick(now, pushes, codec_settled);
}

std::optional<PolicySettings> AutoPolicy::Tick(absl::Time now, const DataPlaneControl& params,
                                               bool codec_settled) {
  if (!tuner_) return std::nullopt;
  if (due_at_ == absl::InfiniteFuture()) {
    if (!Choose(now, params, codec_settled)) return std::nullopt;
    due_at_ = now;
    LogInfo("policy auto: {}", tuner_->reason());
  }
  if (now < due_at_) return std::nullopt;
  return Chosen(settings_, tuner_->choice());
}

void AutoPolicy::Tried(const absl::Status& status, absl::Time now) {
  RECON_CHECK(due_at_ != absl::InfiniteFuture(), "a policy was tried that nobody chose");
  if (!status.ok()) LogWarn("policy auto: not yet: {}", status.message());
  due_at_ = status.ok() ? absl::InfiniteFuture() : now + kRetry;
}

}  // namespace recon
