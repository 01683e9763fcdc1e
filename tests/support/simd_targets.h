#pragma once

#include <cstdint>

#include "catch2/catch.hpp"
#include "hwy/targets.h"

namespace recon {

// Runs `check` once on each SIMD target this machine has.
template <typename Check>
void OnEverySimdTarget(Check check) {
  const int64_t supported = hwy::SupportedTargets();
  for (int64_t targets = supported; targets != 0; targets &= targets - 1) {
    const int64_t target = targets & -targets;
    hwy::SetSupportedTargetsForTest(target);
    INFO("SIMD target " << hwy::TargetName(target));
    check();
  }
  hwy::SetSupportedTargetsForTest(0);
}

}  // namespace recon
