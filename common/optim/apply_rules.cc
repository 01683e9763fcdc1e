#include "common/optim/apply_rules.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "common/base/limits.h"
#include "common/base/status_macros.h"

namespace recon {
namespace {

constexpr char kOuter[] = "outer-";
constexpr uint32_t kVersionsByDefault = 16;

// Whether it needs the parameters that a gradient was computed from.
bool Compares(StalenessCorrection kind) {
  return kind == StalenessCorrection::kGapAware || kind == StalenessCorrection::kDelayCompensated;
}

}  // namespace

double InverseStaleness(uint64_t staleness) {
  return 1 / static_cast<double>(std::max<uint64_t>(staleness, 1));
}

absl::StatusOr<CorrectionRules> ParseCorrection(absl::string_view text) {
  const std::pair<absl::string_view, StalenessCorrection> names[] = {
      {"none", StalenessCorrection::kNone},
      {"inverse", StalenessCorrection::kInverse},
      {"gap-aware", StalenessCorrection::kGapAware},
      {"dc-asgd", StalenessCorrection::kDelayCompensated},
  };
  const std::vector<absl::string_view> words = absl::StrSplit(text, ':');
  for (const auto& [name, kind] : names) {
    if (words[0] != name) continue;
    CorrectionRules rules{kind, Compares(kind) ? kVersionsByDefault : 0};
    const bool numbers =
        words.size() < 2 || (words.size() == 2 && absl::SimpleAtoi(words[1], &rules.versions));
    if (numbers && (words.size() == 1 || rules.versions > 0) && CheckCorrection(rules).ok()) return rules;
  }
  return absl::InvalidArgumentError(absl::StrCat("--staleness-correction ", text,
                                                 ": expected none, inverse, gap-aware[:VERSIONS] or "
                                                 "dc-asgd[:VERSIONS], with 1 to ",
                                                 limits::kVersionsKeptMax, " versions"));
}

absl::Status CheckCorrection(const CorrectionRules& rules) {
  const bool known = rules.kind <= StalenessCorrection::kDelayCompensated;
  if (known && Compares(rules.kind) == (rules.versions > 0) && rules.versions <= limits::kVersionsKeptMax) {
    return absl::OkStatus();
  }
  return absl::InvalidArgumentError(absl::StrCat("staleness correction ", static_cast<int>(rules.kind),
                                                 " with ", rules.versions, " versions"));
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
