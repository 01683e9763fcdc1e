// Of Coordinator: how the job goes on by another policy.

#include <map>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/log.h"
#include "common/base/status_macros.h"
#include "server/control/coordinator.h"

namespace recon {
namespace {

// Between two tries of a change of policy that has to wait: each stops the job for a moment.
constexpr absl::Duration kPolicyRetry = absl::Seconds(30);

}  // namespace

// Workers register again, learn what has changed, and send again what they had under way.
absl::Status Coordinator::GoOnBy(ApplyRules rules, uint64_t first_step, absl::Time now) {
  RECON_ASSIGN_OR_RETURN(rules.cluster_epoch, ports_.journal->NextClusterEpoch(cluster_epoch_));
  const absl::Status changed = ports_.params->ChangeRules(rules, first_step);
  membership_.Excuse(now);  // Nobody was heard of meanwhile.
  progress_.ExcuseAll(now);
  if (changed.ok()) cluster_epoch_ = rules.cluster_epoch;
  return changed;
}

absl::Status Coordinator::GoOnWith(const PolicySettings& settings, absl::Time now) {
  RECON_ASSIGN_OR_RETURN(Policy policy, ResolvePolicy(settings, options_.policy_base));
  RECON_RETURN_IF_ERROR(CheckRound(settings, policy, job_.batch_samples(), job_.split_samples()));
  if (const auto layout = ports_.params->layout())
    RECON_RETURN_IF_ERROR(CheckSyncPeriods(policy.job, *layout));
  if (finishing_ || finished_ || draining_) {
    return absl::FailedPreconditionError("the job is at its end: its policy is not changed any more");
  }
  policy.rules.job_id = options_.job_id;
  policy.rules.history = job_.history();
  RECON_RETURN_IF_ERROR(GoOnBy(policy.rules, 0, now));
  TellWorkers(policy, &job_);
  ApplyQuorum();
  if (const absl::Status fixed = started_ ? FixStepSamples() : absl::OkStatus(); !fixed.ok()) {
    LogWarn("--step-samples constant waits for the next worker that registers: {}", fixed.message());
  }
  optimizer_ = OptimizerName(policy.rules.optimizer.kind);
  codec_tuner_.Restart();
  LogInfo("policy: {}; cluster epoch {}", PolicyFlags(policy.job.policy()), cluster_epoch_);
  return absl::OkStatus();
}

void Coordinator::ApplyQuorum() {
  const PolicySettings& settings = job_.policy();
  std::optional<absl::Duration> grace;
  if (settings.has_grace_ms()) grace = absl::Milliseconds(settings.grace_ms());
  ports_.steps->SetQuorum(settings.quorum(), grace);
}

absl::Status Coordinator::FixStepSamples() {
  if (!job_.policy().step_samples_constant() || !record_ || record_->step_samples() != 0) {
    return absl::OkStatus();
  }
  JobRecord record = *record_;
  record.set_step_samples(static_cast<uint64_t>(membership_.alive()) * job_.batch_samples());
  RECON_RETURN_IF_ERROR(ports_.journal->SaveJob(record));
  LogInfo("a step has {} samples from now on, whoever is there", record.step_samples());
  record_ = std::move(record);
  return absl::OkStatus();
}

uint64_t Coordinator::StepSamples() const {
  if (job_.bound() != 0 || job_.has_local()) return 0;
  if (!job_.policy().step_samples_constant()) return job_.policy().step_samples();
  return record_ ? record_->step_samples() : 0;
}

void Coordinator::TunePolicy(absl::Time now) {
  if (!policy_tuner_ || finishing_) return;
  if (policy_due_at_ == absl::InfiniteFuture()) {
    if (!policy_tuner_->Due(now)) return;
    std::map<WorkerId, PolicyTuner::Pushes> pushes;
    for (const auto& [worker, stats] : ports_.params->GetStats().workers) {
      pushes[worker] = {stats.pushes, stats.staleness_mean * static_cast<double>(stats.staleness_pushes),
                        stats.waiting_seconds};
    }
    if (!policy_tuner_->Tick(now, pushes, codec_tuner_.settled())) return;
    policy_due_at_ = now;
    LogInfo("policy auto: {}", policy_tuner_->reason());
  }
  if (now < policy_due_at_) return;
  const absl::Status status = GoOnWith(Chosen(auto_settings_, policy_tuner_->choice()), now);
  if (!status.ok()) LogWarn("policy auto: not yet: {}", status.message());
  policy_due_at_ = status.ok() ? absl::InfiniteFuture() : now + kPolicyRetry;
}

absl::StatusOr<SetPolicyReply> Coordinator::SetPolicy(const SetPolicyRequest& request, absl::Time now) {
  if (IsAuto(request.policy()) && ports_.others != nullptr) {
    return absl::FailedPreconditionError("the policy of a job with several servers cannot be changed live");
  }
  RECON_RETURN_IF_ERROR(GoOnWith(request.policy(), now));
  policy_tuner_.reset();
  policy_due_at_ = absl::InfiniteFuture();
  if (IsAuto(request.policy())) {
    auto_settings_ = request.policy();
    policy_tuner_.emplace(AutoLimits(auto_settings_));
  }
  PolicyRecord record;
  *record.mutable_set() = request.policy();
  *record.mutable_flags() = options_.policy_of_flags;
  if (const absl::Status saved = ports_.journal->SavePolicy(record); !saved.ok()) {
    return absl::UnavailableError(
        absl::StrCat("the policy is in force, but will not outlive this server: ", saved.message()));
  }
  SetPolicyReply reply;
  *reply.mutable_job() = job_;
  reply.set_cluster_epoch(cluster_epoch_);
  return reply;
}

}  // namespace recon
