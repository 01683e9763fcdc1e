#include "common/optim/apply_rules.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "common/base/status_macros.h"

namespace recon {
namespace {

constexpr char kOuter[] = "outer-";

}  // namespace

double StalenessScale(StalenessCorrection correction, uint64_t staleness) {
  if (correction == StalenessCorrection::kNone) return 1;
  return 1 / static_cast<double>(std::max<uint64_t>(staleness, 1));
}

const char* StalenessCorrectionName(StalenessCorrection correction) {
  return correction == StalenessCorrection::kNone ? "none" : "inverse";
}

absl::StatusOr<StalenessCorrection> ParseStalenessCorrection(absl::string_view name) {
  for (const auto correction : {StalenessCorrection::kNone, StalenessCorrection::kInverse}) {
    if (name == StalenessCorrectionName(correction)) return correction;
  }
  return absl::InvalidArgumentError(
      absl::StrCat("--staleness-correction ", name, ": expected none or inverse"));
}

StateOwner StateOf(const ApplyRules& rules) {
  return {rules.optimizer.kind, rules.local && StatePlanes(rules.optimizer.kind) > 0};
}

bool Compatible(const StateOwner& a, const StateOwner& b) {
  return a.planes() == b.planes() && a.outer == b.outer;
}

std::string StateName(const StateOwner& owner) {
  return absl::StrCat(owner.outer ? kOuter : "", OptimizerName(owner.kind));
}

absl::StatusOr<StateOwner> ParseStateOwner(absl::string_view name) {
  StateOwner owner;
  owner.outer = absl::ConsumePrefix(&name, kOuter);
  RECON_ASSIGN_OR_RETURN(owner.kind, ParseOptimizer(name));
  return owner;
}

}  // namespace recon
