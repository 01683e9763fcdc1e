#include "common/optim/apply_rules.h"

#include <algorithm>

#include "absl/strings/str_cat.h"

namespace recon {

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

}  // namespace recon
