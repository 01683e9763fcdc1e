#include "server/process/policy_flags.h"

#include <cstdint>
#include <string>

#include "common/base/limits.h"
#include "server/control/policy.h"

namespace recon {
namespace {

using Texts = std::vector<std::string>;

// Not given: what goes with --sync.
constexpr double kAsSyncSays = -1;

// A value that goes to a field of the settings as it is.
template <typename T>
FlagField Field(T otherwise, PolicySettings* settings, void (PolicySettings::*set)(T)) {
  return FlagField::To<T>(otherwise, [settings, set](T value) { (settings->*set)(value); });
}

// A number that goes to the settings if it is given.
FlagField IfGiven(PolicySettings* settings, void (PolicySettings::*set)(double)) {
  return FlagField::To<double>(kAsSyncSays, [settings, set](double value) {
    if (value != kAsSyncSays) (settings->*set)(value);
  });
}

// How far workers may be apart, and what they push.
std::vector<Flag> StepFlags(PolicySettings* settings) {
  return {
      {"--sync",
       FlagField::To<std::string>("asp", [settings](const std::string& sync) { settings->set_sync(sync); }),
       "asp (asynchronous), bsp (synchronous mean), ssp:S (S steps apart at most), local:H "
       "(workers train parameters of their own for H batches, then take the mean) or diloco:H "
       "(the same, and the server takes the mean as a gradient for Nesterov at 0.7 and 0.9); or auto: the "
       "server chooses, and changes it, by what it measures"},
      {"--local-steps", Field<uint32_t>(0, settings, &PolicySettings::set_local_steps),
       "with asp, bsp or ssp: a worker trains parameters of its own for so many batches, then "
       "pushes how far they have moved; 0 = gradients are pushed",
       CLI::Range(uint32_t{0}, limits::kLocalStepsMax)},
      {"--outer-optimizer",
       FlagField::To<std::string>(
           "", [settings](const std::string& name) { settings->set_outer_optimizer(name); }),
       "with local steps, what the server does with pushes; default sgd, with diloco nesterov",
       {},
       "",
       Flag::Need::kHasNoDefaultOfItsOwn},
      {"--outer-learning-rate", IfGiven(settings, &PolicySettings::set_outer_learning_rate),
       "default 1: parameters become the workers' mean (with asp and ssp 1/--workers-min), "
       "with diloco 0.7",
       CLI::Range(0.0, 1e6), "", Flag::Need::kHasNoDefaultOfItsOwn},
      {"--outer-momentum", IfGiven(settings, &PolicySettings::set_outer_momentum), "default 0.9",
       CLI::Range(0.0, 1.0), "", Flag::Need::kHasNoDefaultOfItsOwn},
      {"--fragments", Field<uint32_t>(0, settings, &PolicySettings::set_fragments),
       "with local steps: so many parts of the parameters are pushed in turn, one after H/F batches, "
       "while training goes on; 0 or 1 = all together, and training waits",
       CLI::Range(uint32_t{0}, limits::kLocalStepsMax)},
      {"--local-steps-by-speed", Field<bool>(false, settings, &PolicySettings::set_local_steps_by_speed),
       "with local steps: slower workers take fewer of them than the fastest, so that all push at "
       "about the same time"},
  };
}

// Who and what is part of a step.
std::vector<Flag> ShareFlags(PolicySettings* settings) {
  return {
      {"--quorum", Field<uint32_t>(0, settings, &PolicySettings::set_quorum),
       "with bsp, local:H and diloco:H: a step is closed without the slowest workers when so many "
       "have pushed it and --grace has passed; what they push goes into a later step; 0 = all are "
       "waited for",
       CLI::Range(size_t{0}, limits::kMembersMax)},
      {"--grace",
       FlagField::To<std::string>("auto",
                                  [settings](const std::string& text) { return ParseGrace(text, settings); }),
       "with --quorum: a duration, or auto: half the time that the quorum took in the last steps"},
      {"--step-samples",
       FlagField::To<std::string>(
           "0", [settings](const std::string& text) { return ParseStepSamples(text, settings); }),
       "with bsp: samples of a step, a multiple of --batch; where workers are fewer, each pushes the mean "
       "of more batches, so that the trajectory stays. constant: as many as the job's first step has; 0: a "
       "batch of each worker"},
      {"--sync-period",
       FlagField::To<Texts>({}, [settings](const Texts& texts) { return ParseSyncPeriods(texts, settings); }),
       "GROUP=N: gradients of that tensor group are in each N-th push only, the mean of N; may "
       "be given more than once"},
  };
}

// What the server makes of staleness, and what it may choose by itself.
std::vector<Flag> AdaptationFlags(PolicySettings* settings) {
  return {
      {"--staleness-correction",
       FlagField::To<std::string>(
           "none", [settings](const std::string& name) { settings->set_staleness_correction(name); }),
       "with asp and ssp, of a gradient whose parameters have been updated since: none, inverse (it "
       "counts 1/updates), gap-aware[:VERSIONS] (its values count the less, the further "
       "parameters have moved) or dc-asgd[:VERSIONS] (its first-order change is added)"},
      {"--auto-bound-max",
       FlagField::To<int>(-1,
                          [settings](int bound) {
                            if (bound >= 0) settings->set_auto_bound_max(static_cast<uint32_t>(bound));
                          }),
       "with --sync auto: workers are never more pushes apart; 0 is bsp, -1 no bound", CLI::Range(-1, 1000)},
      {"--auto-local-steps-max", Field<uint32_t>(0, settings, &PolicySettings::set_auto_local_steps_max),
       "with --sync auto: where workers wait for the link, they may train for up to so many "
       "batches on their own; --split-samples must have so many; 0 = gradients are always pushed",
       CLI::Range(uint32_t{0}, limits::kLocalStepsMax)},
  };
}

}  // namespace

std::vector<Flag> PolicyFlagRows(PolicySettings* settings) {
  std::vector<Flag> rows = StepFlags(settings);
  for (const auto& more : {ShareFlags(settings), AdaptationFlags(settings)}) {
    rows.insert(rows.end(), more.begin(), more.end());
  }
  return rows;
}

}  // namespace recon
