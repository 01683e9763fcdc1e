#pragma once

#include "absl/status/statusor.h"
#include "common/optim/apply_rules.h"
#include "proto/manifest.pb.h"

namespace recon {

// ApplyRules as they are stored. Pure functions.

UpdateRules EncodeRules(const ApplyRules& rules);
// DataLoss, naming the value, for rules that no server has.
absl::StatusOr<ApplyRules> DecodeRules(const UpdateRules& message);

}  // namespace recon
