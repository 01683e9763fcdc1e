// Of Coordinator: how the job goes on by another policy.

#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/log.h"
#include "common/base/status_macros.h"
#include "server/control/coordinator.h"

namespace recon {

// Workers register again, learn what has changed, and send again what they had under way.
absl::Status Coordinator::GoOnBy(ApplyRules rules, uint64_t first_step, absl::Time now) {
  RECON_ASSIGN_OR_RETURN(rules.cluster_epoch, ports_.journal->NextClusterEpoch(cluster_epoch_));
  absl::Duration took;
  const absl::Status changed = ports_.params->ChangeRules(rules, first_step, &took);
  membership_.Excuse(now + took);  // Nobody was heard of meanwhile.
  progress_.ExcuseAll(now + took);
  if (changed.ok()) cluster_epoch_ = rules.cluster_epoch;
  return changed;
}

absl::Status Coordinator::GoOnWith(const PolicySettings& settings, absl::Time now) {
  RECON_ASSIGN_OR_RETURN(Policy policy, ResolvePolicy(settings, options_.policy_base));
  RECON_RETURN_IF_ERROR(CheckRound(settings, policy, job_.batch_samples(), job_.split_samples()));
  if (const auto layout = ports_.params->layout())
    RECON_RETURN_IF_ERROR(CheckSyncPeriods(policy.job, *layout));
  if (lifecycle_.ending()) {
    return absl::FailedPreconditionError("the job is at its end: its policy is not changed any more");
  }
  policy.rules.job_id = options_.job_id;
  policy.rules.history = job_.history();
  RECON_RETURN_IF_ERROR(GoOnBy(policy.rules, 0, now));
  TellWorkers(policy, &job_);
  ApplyQuorum();
  if (const absl::Status fixed = lifecycle_.started() ? FixStepSamples() : absl::OkStatus(); !fixed.ok()) {
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
  if (!job_.policy().step_samples_constant() || !record_.known()) return absl::OkStatus();
  return record_.FixStepSamples(static_cast<uint64_t>(membership_.alive()) * job_.batch_samples());
}

void Coordinator::TunePolicy(absl::Time now) {
  const std::optional<PolicySettings> chosen = auto_policy_.Tick(now, *ports_.params, codec_tuner_.settled());
  if (chosen) auto_policy_.Tried(GoOnWith(*chosen, now), now);
}

absl::StatusOr<SetPolicyReply> Coordinator::SetPolicy(const SetPolicyRequest& request, absl::Time now) {
  if (IsAuto(request.policy()) && ports_.others != nullptr) {
    return absl::FailedPreconditionError("the policy of a job with several servers cannot be changed live");
  }
  RECON_RETURN_IF_ERROR(GoOnWith(request.policy(), now));
  auto_policy_.Set(request.policy());
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
