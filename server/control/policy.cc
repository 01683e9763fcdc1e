#include "server/control/policy.h"

#include <algorithm>
#include <map>
#include <utility>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "common/base/limits.h"
#include "common/base/status_macros.h"
#include "common/codec/codec.h"
#include "common/optim/update_rules.h"
#include "server/sync/staleness_gate.h"

namespace recon {
namespace {

constexpr uint32_t kBoundMax = 1000;
constexpr uint32_t kSyncPeriodMax = 1000;
constexpr char kAuto[] = "auto";
constexpr absl::Duration kGraceMax = absl::Hours(1);

// Douillard et al., "DiLoCo: Distributed Low-Communication Training of Language Models", 2023, table 5.
constexpr double kDilocoRate = 0.7;
constexpr double kDilocoMomentum = 0.9;

bool HasOuter(const PolicySettings& settings) {
  return !settings.outer_optimizer().empty() || settings.has_outer_learning_rate() ||
         settings.has_outer_momentum();
}

struct Sync {
  int bound = StalenessGate::kUnlimited;
  uint32_t local_steps = 0;
  bool diloco = false;
};

absl::StatusOr<Sync> ParseSync(const std::string& text) {
  if (text.empty() || text == "asp") return Sync();
  if (text == "bsp") return Sync{0};
  uint32_t number = 0;
  const std::vector<std::string> words = absl::StrSplit(text, ':');
  if (words.size() == 2 && absl::SimpleAtoi(words[1], &number) && number >= 1) {
    if (words[0] == "ssp" && number <= kBoundMax) return Sync{static_cast<int>(number)};
    const bool diloco = words[0] == "diloco";
    if ((words[0] == "local" || diloco) && number <= limits::kLocalStepsMax) return Sync{0, number, diloco};
  }
  return absl::InvalidArgumentError(
      absl::StrCat("--sync ", text, ": expected asp, bsp, ssp:1 to ssp:", kBoundMax,
                   ", local:1 to local:", limits::kLocalStepsMax, ", diloco likewise, or auto"));
}

absl::Status CheckPeriodValues(const PolicySettings& settings) {
  for (const auto& [group, period] : settings.sync_periods()) {
    if (group.empty() || group.size() > limits::kNameBytesMax || period < 1 || period > kSyncPeriodMax) {
      return absl::InvalidArgumentError(absl::StrCat("--sync-period ", group.substr(0, limits::kNameBytesMax),
                                                     "=", period, ": expected a group and 1 to ",
                                                     kSyncPeriodMax));
    }
  }
  return absl::OkStatus();
}

absl::StatusOr<OptimizerConfig> OuterOptimizer(const PolicySettings& settings, const Sync& sync,
                                               uint32_t workers_min) {
  OptimizerConfig outer;
  outer.kind = sync.diloco ? OptimizerKind::kNesterov : OptimizerKind::kSgd;
  if (!settings.outer_optimizer().empty()) {
    RECON_ASSIGN_OR_RETURN(outer.kind, ParseOptimizer(settings.outer_optimizer(), "--outer-optimizer"));
    if (outer.kind == OptimizerKind::kMean) {
      return absl::InvalidArgumentError("--outer-optimizer mean: the server has the outer optimizer");
    }
  }
  // Without bound each worker's push is an update of its own: together they make their mean.
  outer.learning_rate = sync.diloco ? kDilocoRate : sync.bound == 0 ? 1 : 1.0 / workers_min;
  outer.momentum = kDilocoMomentum;
  if (settings.has_outer_learning_rate()) outer.learning_rate = settings.outer_learning_rate();
  if (settings.has_outer_momentum()) outer.momentum = settings.outer_momentum();
  const bool adaptive = outer.kind == OptimizerKind::kAdam || outer.kind == OptimizerKind::kAdamW;
  if (adaptive && !settings.has_outer_learning_rate()) {
    return absl::InvalidArgumentError(absl::StrCat("--outer-optimizer ", settings.outer_optimizer(),
                                                   ": needs an --outer-learning-rate, there is no default"));
  }
  const absl::Status checked = CheckOptimizer(outer);
  if (!checked.ok()) {
    return absl::InvalidArgumentError(absl::StrCat("of the outer optimizer: ", checked.message()));
  }
  return outer;
}

}  // namespace

absl::Status ParseSyncPeriods(const std::vector<std::string>& texts, PolicySettings* settings) {
  for (const std::string& text : texts) {
    const std::pair<std::string, std::string> halves = absl::StrSplit(text, absl::MaxSplits('=', 1));
    uint32_t period = 0;
    if (halves.first.empty() || !absl::SimpleAtoi(halves.second, &period)) {
      return absl::InvalidArgumentError(
          absl::StrCat("--sync-period ", text, ": expected GROUP=N, such as conv=4"));
    }
    if (!settings->mutable_sync_periods()->insert({halves.first, period}).second) {
      return absl::InvalidArgumentError(absl::StrCat("--sync-period: group ", halves.first, " twice"));
    }
  }
  return absl::OkStatus();
}

absl::Status ParseGrace(const std::string& text, PolicySettings* settings) {
  if (text == "auto") return absl::OkStatus();
  absl::Duration grace;
  if (!absl::ParseDuration(text, &grace) || grace < absl::ZeroDuration() || grace > kGraceMax) {
    return absl::InvalidArgumentError(absl::StrCat(
        "--grace ", text, ": expected auto or a duration of 0s to ", absl::FormatDuration(kGraceMax)));
  }
  settings->set_grace_ms(static_cast<uint32_t>(absl::ToInt64Milliseconds(grace)));
  return absl::OkStatus();
}

absl::Status ParseStepSamples(const std::string& text, PolicySettings* settings) {
  if (text == "constant") {
    settings->set_step_samples_constant(true);
    return absl::OkStatus();
  }
  uint64_t samples = 0;
  if (!absl::SimpleAtoi(text, &samples)) {
    return absl::InvalidArgumentError(
        absl::StrCat("--step-samples ", text, ": expected a number of samples, constant, or 0"));
  }
  settings->set_step_samples(samples);
  return absl::OkStatus();
}

std::string PolicyFlags(const PolicySettings& settings) {
  std::string text = absl::StrCat("--sync ", settings.sync().empty() ? "asp" : settings.sync());
  const auto add = [&text](const auto&... parts) { absl::StrAppend(&text, " --", parts...); };
  if (settings.local_steps() > 0) add("local-steps ", settings.local_steps());
  if (!settings.outer_optimizer().empty()) add("outer-optimizer ", settings.outer_optimizer());
  if (settings.has_outer_learning_rate()) add("outer-learning-rate ", settings.outer_learning_rate());
  if (settings.has_outer_momentum()) add("outer-momentum ", settings.outer_momentum());
  const std::string& correction = settings.staleness_correction();
  if (!correction.empty() && correction != "none") add("staleness-correction ", correction);
  if (settings.has_auto_bound_max()) add("auto-bound-max ", settings.auto_bound_max());
  if (settings.auto_local_steps_max() > 0) add("auto-local-steps-max ", settings.auto_local_steps_max());
  const std::map<std::string, uint32_t> periods(settings.sync_periods().begin(),
                                                settings.sync_periods().end());
  for (const auto& [group, period] : periods) add("sync-period ", group, "=", period);
  if (settings.fragments() > 0) add("fragments ", settings.fragments());
  if (settings.local_steps_by_speed()) add("local-steps-by-speed");
  if (settings.quorum() > 0) add("quorum ", settings.quorum());
  if (settings.has_grace_ms()) {
    add("grace ", absl::FormatDuration(absl::Milliseconds(settings.grace_ms())));
  }
  if (settings.step_samples() > 0) add("step-samples ", settings.step_samples());
  if (settings.step_samples_constant()) add("step-samples constant");
  return text;
}

absl::Status CheckSyncPeriods(const JobConfig& job, const ParamLayout& layout) {
  const auto& periods = job.sync_periods();
  const std::vector<std::string>& groups = layout.groups();
  for (const auto& [group, period] : periods) {
    if (std::find(groups.begin(), groups.end(), group) != groups.end()) continue;
    return absl::InvalidArgumentError(absl::StrCat("--sync-period ", group, "=", period,
                                                   ": the model's groups are ", absl::StrJoin(groups, ", ")));
  }
  const auto in_every_push = [&](const std::string& group) {
    const auto found = periods.find(group);
    return found == periods.end() || found->second == 1;
  };
  if (std::any_of(groups.begin(), groups.end(), in_every_push)) return absl::OkStatus();
  return absl::InvalidArgumentError(
      "--sync-period: one group at least must be in every push; for fewer pushes of all groups workers have "
      "--accumulate");
}

bool IsAuto(const PolicySettings& settings) { return settings.sync() == kAuto; }

PolicyController::Limits AutoLimits(const PolicySettings& settings) {
  PolicyController::Limits auto_limits;
  if (settings.has_auto_bound_max()) auto_limits.bound_max = static_cast<int>(settings.auto_bound_max());
  auto_limits.local_steps_max = settings.auto_local_steps_max();
  return auto_limits;
}

PolicySettings Chosen(const PolicySettings& settings, const PolicyController::Choice& choice) {
  PolicySettings chosen = settings;
  chosen.clear_auto_bound_max();
  chosen.clear_auto_local_steps_max();
  chosen.set_sync(choice.bound < 0 ? "asp" : choice.bound == 0 ? "bsp" : absl::StrCat("ssp:", choice.bound));
  chosen.set_local_steps(choice.local_steps);
  // Each of them is for some of the policies.
  if (choice.local_steps == 0) {
    chosen.clear_outer_optimizer();
    chosen.clear_outer_learning_rate();
    chosen.clear_outer_momentum();
    chosen.clear_fragments();
    chosen.clear_local_steps_by_speed();
  } else {
    chosen.clear_sync_periods();
  }
  if (choice.local_steps > 0 || choice.bound == 0) chosen.clear_staleness_correction();
  return chosen;
}

namespace {

// Those settings of a synchronous step that say who and how much is in it.
absl::Status CheckStep(const PolicySettings& settings, const Policy& policy, const PolicyBase& base) {
  const bool in_parts = policy.job.local().fragments() > 1 || !settings.sync_periods().empty();
  if (settings.quorum() == 0 && settings.has_grace_ms()) {
    return absl::InvalidArgumentError("--grace is for --quorum");
  }
  if (settings.quorum() > limits::kMembersMax || settings.grace_ms() > absl::ToInt64Milliseconds(kGraceMax)) {
    return absl::InvalidArgumentError(
        absl::StrCat("--quorum ", settings.quorum(), " and --grace of ", settings.grace_ms(),
                     " ms: allowed are ", limits::kMembersMax, " and ", absl::FormatDuration(kGraceMax)));
  }
  if (settings.quorum() > 0 && (policy.rules.bound != 0 || in_parts)) {
    return absl::InvalidArgumentError(
        "--quorum is for synchronous steps of all parameters: --sync bsp, local:H or diloco:H, without "
        "--fragments and --sync-period");
  }
  const uint64_t samples = settings.step_samples();
  if (samples == 0 && !settings.step_samples_constant()) return absl::OkStatus();
  if (policy.rules.bound != 0 || policy.rules.local || in_parts) {
    return absl::InvalidArgumentError(
        "--step-samples is for synchronous gradients: --sync bsp, without --sync-period");
  }
  if (samples > 0 && settings.step_samples_constant()) {
    return absl::InvalidArgumentError("--step-samples: a number, or constant");
  }
  if (samples % base.batch_samples != 0 || samples > limits::kSamplesMax) {
    return absl::InvalidArgumentError(absl::StrCat("--step-samples ", samples,
                                                   ": expected a multiple of --batch ", base.batch_samples,
                                                   ", at most ", limits::kSamplesMax));
  }
  return absl::OkStatus();
}

absl::StatusOr<Policy> ResolveAuto(const PolicySettings& settings, const PolicyBase& base) {
  if (settings.quorum() > 0 || settings.has_grace_ms() || settings.step_samples() > 0 ||
      settings.step_samples_constant()) {
    return absl::InvalidArgumentError(
        "--quorum, --grace and --step-samples are for a policy that stays, not for --sync auto");
  }
  if (settings.local_steps() > 0) {
    return absl::InvalidArgumentError(
        "--local-steps: --sync auto chooses them, up to --auto-local-steps-max");
  }
  if (settings.fragments() > 1) {
    return absl::InvalidArgumentError("--fragments: --sync auto pushes all of a round together");
  }
  if (settings.auto_local_steps_max() == 0 && HasOuter(settings)) {
    return absl::InvalidArgumentError(
        "--outer-optimizer and its companions: --sync auto takes local steps with --auto-local-steps-max "
        "only");
  }
  if (settings.auto_local_steps_max() == 0 && settings.local_steps_by_speed()) {
    return absl::InvalidArgumentError(
        "--local-steps-by-speed: --sync auto takes local steps with --auto-local-steps-max only");
  }
  RECON_RETURN_IF_ERROR(
      ParseCorrection(settings.staleness_correction().empty() ? "none" : settings.staleness_correction())
          .status());
  if (settings.auto_bound_max() > kBoundMax || settings.auto_local_steps_max() > limits::kLocalStepsMax) {
    return absl::InvalidArgumentError(absl::StrCat(
        "--auto-bound-max ", settings.auto_bound_max(), " and --auto-local-steps-max ",
        settings.auto_local_steps_max(), ": allowed are ", kBoundMax, " and ", limits::kLocalStepsMax));
  }
  const PolicyController controller(AutoLimits(settings));
  for (const PolicyController::Choice& choice : controller.ladder()) {
    RECON_ASSIGN_OR_RETURN(const Policy policy, ResolvePolicy(Chosen(settings, choice), base));
    // The state that is kept is that of the first.
    if (StateOf(policy.rules).outer) {
      return absl::InvalidArgumentError(absl::StrCat("--outer-optimizer ", settings.outer_optimizer(),
                                                     ": with --sync auto it is sgd, which keeps no state"));
    }
  }
  return ResolvePolicy(Chosen(settings, controller.choice()), base);
}

absl::Status CheckTextSizes(const PolicySettings& settings) {
  for (const std::string* text :
       {&settings.sync(), &settings.outer_optimizer(), &settings.staleness_correction()}) {
    if (text->size() > limits::kNameBytesMax) {
      return absl::InvalidArgumentError(absl::StrCat("a setting of the policy has ", text->size(),
                                                     " bytes, allowed are ", limits::kNameBytesMax));
    }
  }
  return absl::OkStatus();
}

absl::StatusOr<CorrectionRules> CorrectionOf(const PolicySettings& settings, const Sync& sync) {
  if (settings.staleness_correction().empty()) return CorrectionRules();
  RECON_ASSIGN_OR_RETURN(const CorrectionRules correction, ParseCorrection(settings.staleness_correction()));
  if (correction.kind != StalenessCorrection::kNone && sync.bound == 0) {
    return absl::InvalidArgumentError(absl::StrCat("--staleness-correction ", settings.staleness_correction(),
                                                   ": with --sync ", settings.sync(),
                                                   " no gradient is stale"));
  }
  return correction;
}

// 0: workers push gradients.
absl::StatusOr<uint32_t> LocalStepsOf(const PolicySettings& settings, const Sync& sync) {
  if (settings.local_steps() > limits::kLocalStepsMax) {
    return absl::InvalidArgumentError(
        absl::StrCat("--local-steps ", settings.local_steps(), ", allowed are ", limits::kLocalStepsMax));
  }
  if (sync.local_steps > 0 && settings.local_steps() > 0) {
    return absl::InvalidArgumentError("--local-steps: --sync has said it already");
  }
  return std::max(sync.local_steps, settings.local_steps());
}

// Workers have the optimizer: they are handed the mean of each step, and step by it together.
absl::Status CheckMeans(const PolicySettings& settings, const PolicyBase& base, const Policy& policy) {
  if (policy.rules.bound != 0 || !settings.sync_periods().empty()) {
    return absl::InvalidArgumentError(
        "--optimizer mean, by which workers have the optimizer, is for synchronous steps of all parameters: "
        "--sync bsp, "
        "without --sync-period");
  }
  if (base.optimizer.clip_norm > 0) {
    return absl::InvalidArgumentError("--clip-norm: with --optimizer mean workers clip the mean themselves");
  }
  return absl::OkStatus();
}

// Workers push gradients: the rest of the policy.
absl::Status ResolveGradients(const PolicySettings& settings, const PolicyBase& base, Policy* policy) {
  if (HasOuter(settings)) {
    return absl::InvalidArgumentError(
        "--outer-optimizer and its companions are for --sync local:H or diloco:H, or --local-steps");
  }
  if (settings.fragments() > 1) {
    return absl::InvalidArgumentError(
        absl::StrCat("--fragments ", settings.fragments(), " is for local steps (--sync local:H)"));
  }
  if (settings.local_steps_by_speed()) {
    return absl::InvalidArgumentError("--local-steps-by-speed is for local steps (--sync local:H)");
  }
  if (base.optimizer.kind == OptimizerKind::kMean) RECON_RETURN_IF_ERROR(CheckMeans(settings, base, *policy));
  policy->job.set_means(base.optimizer.kind == OptimizerKind::kMean);
  policy->job.set_clip_norm(base.optimizer.clip_norm);
  policy->job.set_zeros_change_nothing(ZerosChangeNothing(policy->rules.optimizer));
  *policy->job.mutable_sync_periods() = settings.sync_periods();
  return CheckStep(settings, *policy, base);
}

// Workers take `steps` local steps between two pushes: the rest of the policy.
absl::Status ResolveLocal(const PolicySettings& settings, const Sync& sync, uint32_t steps,
                          const PolicyBase& base, Policy* policy) {
  if (!settings.sync_periods().empty()) {
    return absl::InvalidArgumentError("--sync-period is for gradients, not for local steps");
  }
  if (base.optimizer.kind == OptimizerKind::kMean) {
    return absl::InvalidArgumentError("--optimizer mean is for gradients (--sync bsp), not for local steps");
  }
  const uint32_t fragments = std::max(1u, settings.fragments());
  if (steps % fragments != 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("--fragments ", fragments, ": ", steps, " local steps are no multiple of it"));
  }
  if (policy->rules.correction.kind != StalenessCorrection::kNone) {
    return absl::InvalidArgumentError("--staleness-correction is for gradients, not for local steps");
  }
  policy->job.mutable_local()->set_steps(steps);
  policy->job.mutable_local()->set_fragments(fragments);
  // Clipping is of gradients, not of what is pushed: it is among these.
  ApplyRules inner;
  inner.optimizer = base.optimizer;
  inner.groups = base.groups;
  *policy->job.mutable_local()->mutable_rules() = EncodeRules(inner);
  policy->rules.local = true;
  RECON_RETURN_IF_ERROR(CheckStep(settings, *policy, base));
  policy->rules.groups.clear();
  RECON_ASSIGN_OR_RETURN(policy->rules.optimizer, OuterOptimizer(settings, sync, base.workers_min));
  policy->job.set_zeros_change_nothing(ZerosChangeNothing(policy->rules.optimizer));
  return absl::OkStatus();
}

bool AcceptsSparse(uint32_t refused_codecs) {
  for (const CodecId values : {CodecId::kFp32, CodecId::kFp16, CodecId::kBf16}) {
    if ((refused_codecs >> static_cast<int>(SparseCodec(values)) & 1) != 0) return false;
  }
  return true;
}

}  // namespace

absl::StatusOr<Policy> ResolvePolicy(const PolicySettings& settings, const PolicyBase& base) {
  RECON_RETURN_IF_ERROR(CheckTextSizes(settings));
  if (IsAuto(settings)) return ResolveAuto(settings, base);
  if (settings.has_auto_bound_max() || settings.auto_local_steps_max() > 0) {
    return absl::InvalidArgumentError("--auto-bound-max and --auto-local-steps-max are for --sync auto");
  }
  RECON_ASSIGN_OR_RETURN(const Sync sync, ParseSync(settings.sync()));
  Policy policy;
  policy.rules.bound = sync.bound;
  policy.rules.optimizer = base.optimizer;
  policy.rules.groups = base.groups;
  policy.job.set_bound(sync.bound);
  *policy.job.mutable_policy() = settings;
  RECON_ASSIGN_OR_RETURN(policy.rules.correction, CorrectionOf(settings, sync));
  RECON_RETURN_IF_ERROR(CheckPeriodValues(settings));
  RECON_ASSIGN_OR_RETURN(const uint32_t steps, LocalStepsOf(settings, sync));
  RECON_RETURN_IF_ERROR(steps == 0 ? ResolveGradients(settings, base, &policy)
                                   : ResolveLocal(settings, sync, steps, base, &policy));
  return policy;
}

void TellWorkers(const Policy& policy, JobConfig* job) {
  job->set_bound(policy.job.bound());
  job->set_clip_norm(policy.job.clip_norm());
  job->set_zeros_change_nothing(policy.job.zeros_change_nothing() && AcceptsSparse(job->refused_codecs()));
  job->set_means(policy.job.means());
  *job->mutable_policy() = policy.job.policy();
  *job->mutable_sync_periods() = policy.job.sync_periods();
  job->clear_local();
  if (policy.job.has_local()) *job->mutable_local() = policy.job.local();
}

uint64_t RoundSamples(const JobConfig& job, uint32_t batch_samples) {
  return uint64_t{job.local().steps()} * batch_samples;
}

absl::Status CheckRound(const PolicySettings& settings, const Policy& policy, uint32_t batch_samples,
                        uint32_t split_samples) {
  if (settings.step_samples() > split_samples) {
    return absl::InvalidArgumentError(absl::StrCat("--split-samples ", split_samples,
                                                   ": a step of --step-samples ", settings.step_samples(),
                                                   " may come to be one worker's, and ends with its split"));
  }
  const uint64_t round =
      uint64_t{std::max(policy.job.local().steps(), settings.auto_local_steps_max())} * batch_samples;
  if (round <= split_samples) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(
      "--split-samples ", split_samples, ": ", round / batch_samples, " local steps of ", batch_samples,
      " samples take ", round, "; at most ", split_samples / batch_samples, " fit"));
}

}  // namespace recon
