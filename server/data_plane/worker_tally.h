#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>

#include "common/base/ids.h"

namespace recon {

// What staleness is counted in: up to each of these updates, and more.
inline constexpr std::array<double, 8> kStalenessBounds = {0, 1, 2, 4, 8, 16, 32, 64};

// What a server has counted of a worker that it has admitted.
struct WorkerTally {
  Incarnation incarnation;
  uint64_t pushes = 0;
  double waiting_seconds = 0;     // Of its replies, for other workers' pushes; the sum.
  uint64_t staleness_pushes = 0;  // Those whose staleness is known.
  double staleness_sum = 0;       // Updates.
  uint64_t staleness_max = 0;     // Updates.
  std::array<uint64_t, kStalenessBounds.size() + 1> staleness_counts = {};

  void AddStaleness(uint64_t updates) {
    ++staleness_pushes;
    staleness_sum += static_cast<double>(updates);
    staleness_max = std::max(staleness_max, updates);
    const auto bound =
        std::lower_bound(kStalenessBounds.begin(), kStalenessBounds.end(), static_cast<double>(updates));
    ++staleness_counts[static_cast<size_t>(bound - kStalenessBounds.begin())];
  }
  double staleness_mean() const {
    return staleness_pushes == 0 ? 0 : staleness_sum / static_cast<double>(staleness_pushes);
  }
};

}  // namespace recon
