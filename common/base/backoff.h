#pragma once

#include <algorithm>
#include <random>

#include "absl/time/time.h"

namespace recon {

// Waiting times between attempts: doubling from 50 ms to 1 s, each drawn from the upper half, so that
// workers that lost the same server do not come back at once. Not thread-safe.
class Backoff {
 public:
  absl::Duration Next() {
    const absl::Duration wait = current_ * std::uniform_real_distribution<double>(0.5, 1.0)(random_);
    current_ = std::min(current_ * 2, absl::Seconds(1));
    return wait;
  }

 private:
  absl::Duration current_ = absl::Milliseconds(50);
  std::mt19937 random_{std::random_device{}()};
};

}  // namespace recon
