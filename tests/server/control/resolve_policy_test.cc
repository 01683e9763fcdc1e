// What the settings of a policy come to, and which mistakes in them are named.

#include <functional>
#include <string>
#include <utility>

#include "catch2/catch.hpp"
#include "common/base/limits.h"
#include "common/codec/codec.h"
#include "common/optim/update_rules.h"
#include "server/control/policy.h"

namespace recon {
namespace {

// A job with Adam, clipping, and batches of five samples of three workers.
PolicyBase Base() {
  PolicyBase base;
  base.optimizer.kind = OptimizerKind::kAdam;
  base.optimizer.learning_rate = 0.01;
  base.optimizer.clip_norm = 3;
  base.groups["conv"].weight_decay_scale = 0.5;
  base.batch_samples = 5;
  base.workers_min = 3;
  return base;
}

PolicySettings Sync(const std::string& sync) {
  PolicySettings settings;
  settings.set_sync(sync);
  return settings;
}

}  // namespace

TEST_CASE("gradients are clipped by workers, and the job's optimizer is the server's", "[policy]") {
  const std::pair<const char*, int> policies[] = {{"", -1}, {"asp", -1}, {"bsp", 0}, {"ssp:4", 4}};
  for (const auto& [sync, bound] : policies) {
    INFO(sync);
    const absl::StatusOr<Policy> policy = ResolvePolicy(Sync(sync), Base());
    REQUIRE(policy.ok());
    CHECK(policy->rules.bound == bound);
    CHECK(policy->job.bound() == bound);
    CHECK(policy->rules.optimizer.kind == OptimizerKind::kAdam);
    CHECK(policy->rules.groups.count("conv") == 1);
    CHECK_FALSE(policy->rules.local);
    CHECK_FALSE(policy->job.has_local());
    CHECK(policy->job.clip_norm() == 3);
    CHECK(policy->job.policy().sync() == sync);
  }
}

TEST_CASE("with local steps the job's optimizer is the workers', and the outer one the server's",
          "[policy]") {
  PolicySettings settings = Sync("local:8");
  settings.set_fragments(2);
  const absl::StatusOr<Policy> policy = ResolvePolicy(settings, Base());
  REQUIRE(policy.ok());
  CHECK(policy->rules.local);
  CHECK(policy->rules.bound == 0);
  CHECK(policy->rules.groups.empty());
  CHECK(policy->rules.optimizer.kind == OptimizerKind::kSgd);
  CHECK(policy->rules.optimizer.learning_rate == 1);  // Their mean.
  CHECK(policy->rules.optimizer.clip_norm == 0);
  CHECK(policy->job.local().steps() == 8);
  CHECK(policy->job.local().fragments() == 2);
  CHECK(policy->job.clip_norm() == 0);
  const absl::StatusOr<ApplyRules> inner = DecodeRules(policy->job.local().rules());
  REQUIRE(inner.ok());
  CHECK(inner->optimizer.kind == OptimizerKind::kAdam);
  CHECK(inner->optimizer.clip_norm == 3);
  CHECK(inner->groups.count("conv") == 1);
}

TEST_CASE("local steps without a bound are of many updates that make a mean, DiLoCo's have momentum",
          "[policy]") {
  PolicySettings settings = Sync("asp");
  settings.set_local_steps(4);
  const absl::StatusOr<Policy> asynchronous = ResolvePolicy(settings, Base());
  REQUIRE(asynchronous.ok());
  CHECK(asynchronous->rules.optimizer.learning_rate == 1.0 / 3);
  CHECK(asynchronous->job.local().fragments() == 1);
  const absl::StatusOr<Policy> diloco = ResolvePolicy(Sync("diloco:4"), Base());
  REQUIRE(diloco.ok());
  CHECK(diloco->rules.optimizer.kind == OptimizerKind::kNesterov);
  CHECK(diloco->rules.optimizer.learning_rate == 0.7);
  CHECK(diloco->rules.optimizer.momentum == 0.9);
}

TEST_CASE("workers may leave zeros out where the server's optimizer is plain SGD without weight decay",
          "[policy]") {
  const auto may = [](const std::string& sync, OptimizerKind kind, double decay) {
    PolicyBase base = Base();
    base.optimizer.kind = kind;
    base.optimizer.weight_decay = decay;
    const Policy policy = *ResolvePolicy(Sync(sync), base);
    JobConfig job;
    job.set_zeros_change_nothing(!policy.job.zeros_change_nothing());
    TellWorkers(policy, &job);
    return job.zeros_change_nothing();
  };
  for (const char* sync : {"asp", "ssp:2", "bsp"}) {
    INFO(sync);
    CHECK(may(sync, OptimizerKind::kSgd, 0));
    CHECK_FALSE(may(sync, OptimizerKind::kSgd, 0.01));
    CHECK_FALSE(may(sync, OptimizerKind::kMomentum, 0));
    CHECK_FALSE(may(sync, OptimizerKind::kNesterov, 0));
    CHECK_FALSE(may(sync, OptimizerKind::kAdam, 0));
    CHECK_FALSE(may(sync, OptimizerKind::kAdamW, 0));
  }
  // Not where payloads without all values are refused.
  JobConfig job;
  job.set_refused_codecs(1u << static_cast<int>(CodecId::kSparseBf16));
  PolicyBase base = Base();
  base.optimizer.kind = OptimizerKind::kSgd;
  TellWorkers(*ResolvePolicy(Sync("asp"), base), &job);
  CHECK_FALSE(job.zeros_change_nothing());
  // With local steps it is the outer one that counts.
  CHECK(may("local:8", OptimizerKind::kAdam, 0.01));
  CHECK_FALSE(may("diloco:8", OptimizerKind::kSgd, 0));
}

TEST_CASE("a correction of staleness is part of the rules", "[policy]") {
  PolicySettings settings = Sync("ssp:4");
  settings.set_staleness_correction("inverse");
  const absl::StatusOr<Policy> policy = ResolvePolicy(settings, Base());
  REQUIRE(policy.ok());
  CHECK(policy->rules.correction.kind == StalenessCorrection::kInverse);
  settings.set_sync("bsp");
  settings.set_staleness_correction("none");
  CHECK(ResolvePolicy(settings, Base()).ok());
}

TEST_CASE("auto begins with a small bound, and settings of all that it may choose are checked", "[policy]") {
  PolicySettings settings = Sync("auto");
  settings.set_auto_local_steps_max(16);
  const absl::StatusOr<Policy> policy = ResolvePolicy(settings, Base());
  REQUIRE(policy.ok());
  CHECK(policy->rules.bound == 2);
  CHECK_FALSE(policy->rules.local);
  settings.set_outer_optimizer("nesterov");
  const absl::Status refused = ResolvePolicy(settings, Base()).status();
  CHECK(std::string(refused.message()).find("with --sync auto it is sgd") != std::string::npos);
}

TEST_CASE("settings that mean nothing together are named by their flag", "[policy]") {
  using Change = std::function<void(PolicySettings*)>;
  const std::pair<Change, std::string> mistakes[] = {
      {[](auto* s) { s->set_sync("sometimes"); }, "--sync sometimes: "},
      {[](auto* s) { s->set_sync(std::string(limits::kNameBytesMax + 1, 's')); },
       "a setting of the policy has"},
      {[](auto* s) { s->set_auto_bound_max(3); }, "--auto-bound-max and --auto-local-steps-max are for"},
      {[](auto* s) { s->set_auto_local_steps_max(3); },
       "--auto-bound-max and --auto-local-steps-max are for"},
      {[](auto* s) {
         s->set_sync("bsp");
         s->set_staleness_correction("inverse");
       },
       "--staleness-correction inverse: with --sync bsp"},
      {[](auto* s) { s->set_staleness_correction("some"); }, "--staleness-correction"},
      {[](auto* s) { (*s->mutable_sync_periods())["conv"] = 0; }, "--sync-period conv=0"},
      {[](auto* s) { s->set_local_steps(limits::kLocalStepsMax + 1); }, "--local-steps "},
      {[](auto* s) {
         s->set_sync("local:8");
         s->set_local_steps(4);
       },
       "--local-steps: --sync has said it already"},
      {[](auto* s) { s->set_outer_momentum(0.5); }, "--outer-optimizer and its companions are for"},
      {[](auto* s) { s->set_fragments(2); }, "--fragments 2 is for local steps"},
      {[](auto* s) { s->set_local_steps_by_speed(true); }, "--local-steps-by-speed is for local steps"},
      {[](auto* s) {
         s->set_sync("local:8");
         (*s->mutable_sync_periods())["conv"] = 4;
       },
       "--sync-period is for gradients"},
      {[](auto* s) {
         s->set_sync("local:8");
         s->set_fragments(3);
       },
       "--fragments 3: 8 local steps are no multiple"},
      {[](auto* s) {
         s->set_local_steps(8);
         s->set_staleness_correction("inverse");
       },
       "--staleness-correction is for gradients"},
      {[](auto* s) { s->set_quorum(1); }, "--quorum is for synchronous steps"},
      {[](auto* s) {
         s->set_sync("local:8");
         s->set_step_samples(10);
       },
       "--step-samples is for synchronous gradients"},
      {[](auto* s) {
         s->set_sync("bsp");
         s->set_step_samples(11);
       },
       "--step-samples 11: expected a multiple of --batch 5"},
      {[](auto* s) {
         s->set_sync("local:8");
         s->set_outer_optimizer("adam");
       },
       "--outer-optimizer adam: needs an --outer-learning-rate"},
  };
  for (const auto& [change, words] : mistakes) {
    PolicySettings settings;
    change(&settings);
    const absl::Status refused = ResolvePolicy(settings, Base()).status();
    INFO(words << " is expected of: " << refused);
    CHECK(absl::IsInvalidArgument(refused));
    CHECK(std::string(refused.message()).find(words) == 0);
  }
}

}  // namespace recon
