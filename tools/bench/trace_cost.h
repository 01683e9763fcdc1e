#pragma once

#include "absl/status/statusor.h"
#include "nlohmann/json.hpp"

namespace recon {

struct TraceCostOptions {
  int rounds = 9;        // Medians are over these.
  double seconds = 0.5;  // Of each measurement of a round.
};

// What spans cost: each by itself, with recording off and on; and the frames that a server applies with
// recording on beside off, in turn, of the smallest frames and of a worker's. (Whole jobs: trace.py.)
absl::StatusOr<nlohmann::ordered_json> RunTraceCost(const TraceCostOptions& options);

}  // namespace recon
