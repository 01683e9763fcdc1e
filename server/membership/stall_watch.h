#pragma once

#include <algorithm>
#include <cstdint>

#include "absl/time/time.h"

namespace recon {

// Notices that a job stands still, and how often that should be said. Pure; not thread-safe.
class StallWatch {
 public:
  // A job that has not moved for so long stands still.
  static constexpr absl::Duration kFirst = absl::Seconds(10);
  // It is said again after twice the time, but not less often than this.
  static constexpr absl::Duration kLongest = absl::Minutes(5);

  // `progress` is any number that changes whenever the job moves. Returns whether it should be said now that
  // the job stands still.
  bool Note(uint64_t progress, absl::Time now) {
    if (progress != progress_ || since_ == absl::InfiniteFuture()) {
      progress_ = progress;
      since_ = now;
      wait_ = kFirst;
      due_ = now + kFirst;
      return false;
    }
    if (now < due_) return false;
    wait_ = std::min(wait_ * 2, kLongest);
    due_ = now + wait_;
    return true;
  }
  // Nothing is expected to move: before a job, and after it.
  void Reset() { since_ = absl::InfiniteFuture(); }

  // For how long nothing has moved; zero for a job that does not stand still.
  absl::Duration Standing(absl::Time now) const {
    return since_ == absl::InfiniteFuture() || now - since_ < kFirst ? absl::ZeroDuration() : now - since_;
  }

 private:
  uint64_t progress_ = 0;
  absl::Time since_ = absl::InfiniteFuture();
  absl::Time due_ = absl::InfiniteFuture();
  absl::Duration wait_ = kFirst;
};

}  // namespace recon
