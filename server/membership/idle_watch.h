#pragma once

#include <cstdint>

#include "absl/time/time.h"

namespace recon {

// Knows for how long nobody has trained a job, from the moment when it is first asked. Unlike StallWatch it
// asks in no phase whether anything is expected to move. Pure; not thread-safe.
class IdleWatch {
 public:
  // `progress` is any number that changes whenever somebody trains.
  void Note(uint64_t progress, absl::Time now) {
    if (progress == progress_ && since_ != absl::InfiniteFuture()) return;
    progress_ = progress;
    since_ = now;
  }

  absl::Duration Idle(absl::Time now) const {
    return since_ == absl::InfiniteFuture() ? absl::ZeroDuration() : now - since_;
  }

 private:
  uint64_t progress_ = 0;
  absl::Time since_ = absl::InfiniteFuture();
};

}  // namespace recon
