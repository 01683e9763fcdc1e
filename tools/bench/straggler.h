#pragma once

#include <string>

#include "absl/status/statusor.h"
#include "nlohmann/json_fwd.hpp"

namespace recon {

struct StragglerOptions {
  int workers = 3;          // Of ordinary speed.
  double slow_factor = 10;  // Of the one more.
  double step_ms = 20;      // Simulated computing time of a step.
  int rounds = 5;           // Medians are over these.
  double seconds = 3;       // Measured in each run.
};

// What one slow worker does to a job: throughput of `workers` alone, then with a slow one more, asynchronous
// and synchronous, in turn. Computing is simulated, so that the figures show waiting, not the machine's
// cores.
absl::StatusOr<nlohmann::ordered_json> RunStraggler(const StragglerOptions& options);

}  // namespace recon
