#include "server/scheduler/lease_size.h"

#include <algorithm>

#include "common/base/limits.h"

namespace recon {

uint32_t LeaseSplits(double samples_per_second, uint32_t split_samples, absl::Duration target,
                     uint32_t free_splits, int workers, double share) {
  const double by_speed = share * samples_per_second * absl::ToDoubleSeconds(target) / split_samples;
  // What a worker says of itself may be anything, no number even.
  const uint32_t wanted =
      by_speed >= 1 ? static_cast<uint32_t>(std::min<double>(by_speed, limits::kLeaseSplitsMax)) : 1;
  const uint32_t of_the_last = free_splits / (2 * static_cast<uint32_t>(std::max(1, workers)));
  return std::max(1u, std::min(wanted, of_the_last));
}

}  // namespace recon
