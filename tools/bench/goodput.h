#pragma once

#include "absl/status/statusor.h"
#include "nlohmann/json_fwd.hpp"

namespace recon {

struct GoodputOptions {
  double seconds = 1800;  // For the smallest cluster; fewer for larger ones, by the root of their size.
  int seeds = 1;
  int workers_max = 4096;
};

// A table of simulated clusters (see simulation.h): share of all workers' time that was computing that
// counted, for some sizes and rates of failure, asynchronous training beside synchronous all-reduce with
// restarts, from checkpoints as often as is best. All is simulated. Internal if an invariant of the control
// plane did not hold.
absl::StatusOr<nlohmann::ordered_json> RunGoodput(const GoodputOptions& options);

}  // namespace recon
