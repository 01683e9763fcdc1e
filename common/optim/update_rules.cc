#include "common/optim/update_rules.h"

#include <cmath>

#include "absl/strings/str_cat.h"

namespace recon {

UpdateRules EncodeRules(const ApplyRules& rules) {
  UpdateRules message;
  message.set_cluster_epoch(rules.cluster_epoch);
  message.set_job_id(rules.job_id);
  message.set_history(rules.history);
  message.set_bound(rules.bound);
  message.set_local(rules.local);
  message.set_staleness_correction(static_cast<uint32_t>(rules.correction.kind));
  message.set_versions_kept(rules.correction.versions);
  message.set_optimizer(OptimizerName(rules.optimizer.kind));
  message.set_learning_rate(rules.optimizer.learning_rate);
  message.set_momentum(rules.optimizer.momentum);
  message.set_beta1(rules.optimizer.beta1);
  message.set_beta2(rules.optimizer.beta2);
  message.set_epsilon(rules.optimizer.epsilon);
  message.set_weight_decay(rules.optimizer.weight_decay);
  message.set_clip_norm(rules.optimizer.clip_norm);
  LearningRateRules* schedule = message.mutable_schedule();
  schedule->set_kind(static_cast<uint32_t>(rules.optimizer.schedule.kind));
  schedule->set_warmup_updates(rules.optimizer.schedule.warmup_updates);
  schedule->set_step_updates(rules.optimizer.schedule.step_updates);
  schedule->set_gamma(rules.optimizer.schedule.gamma);
  schedule->set_total_updates(rules.optimizer.schedule.total_updates);
  schedule->set_final_fraction(rules.optimizer.schedule.final_fraction);
  for (const auto& [name, policy] : rules.groups) {
    GroupRules& group = (*message.mutable_groups())[name];
    group.set_learning_rate_scale(policy.learning_rate_scale);
    group.set_weight_decay_scale(policy.weight_decay_scale);
  }
  return message;
}

absl::StatusOr<ApplyRules> DecodeRules(const UpdateRules& message) {
  ApplyRules rules;
  rules.cluster_epoch = message.cluster_epoch();
  rules.job_id = message.job_id();
  rules.history = message.history();
  rules.bound = message.bound();
  if (rules.bound < -1) return absl::DataLossError(absl::StrCat("rules: bound is ", rules.bound));
  rules.correction = {static_cast<StalenessCorrection>(message.staleness_correction()),
                      message.versions_kept()};
  if (const absl::Status corrects = CheckCorrection(rules.correction); !corrects.ok()) {
    return absl::DataLossError(absl::StrCat("rules: ", corrects.message()));
  }
  rules.local = message.local();
  const absl::StatusOr<OptimizerKind> kind = ParseOptimizer(message.optimizer());
  if (!kind.ok()) return absl::DataLossError(absl::StrCat("rules: ", kind.status().message()));
  rules.optimizer.kind = *kind;
  rules.optimizer.learning_rate = message.learning_rate();
  rules.optimizer.momentum = message.momentum();
  rules.optimizer.beta1 = message.beta1();
  rules.optimizer.beta2 = message.beta2();
  rules.optimizer.epsilon = message.epsilon();
  rules.optimizer.weight_decay = message.weight_decay();
  rules.optimizer.clip_norm = message.clip_norm();
  const LearningRateRules& schedule = message.schedule();
  if (schedule.kind() > static_cast<uint32_t>(ScheduleKind::kCosine) || schedule.step_updates() == 0) {
    return absl::DataLossError(
        absl::StrCat("rules: schedule is ", schedule.kind(), " by ", schedule.step_updates(), " updates"));
  }
  rules.optimizer.schedule.kind = static_cast<ScheduleKind>(schedule.kind());
  rules.optimizer.schedule.warmup_updates = schedule.warmup_updates();
  rules.optimizer.schedule.step_updates = schedule.step_updates();
  rules.optimizer.schedule.gamma = schedule.gamma();
  rules.optimizer.schedule.total_updates = schedule.total_updates();
  rules.optimizer.schedule.final_fraction = schedule.final_fraction();
  const absl::Status checked = CheckOptimizer(rules.optimizer);
  if (!checked.ok()) return absl::DataLossError(absl::StrCat("rules: ", checked.message()));
  for (const auto& [name, group] : message.groups()) {
    if (!std::isfinite(group.learning_rate_scale()) || !std::isfinite(group.weight_decay_scale())) {
      return absl::DataLossError(absl::StrCat("rules: scales of group ", name, " are not finite"));
    }
    rules.groups[name] = {group.learning_rate_scale(), group.weight_decay_scale()};
  }
  return rules;
}

}  // namespace recon
