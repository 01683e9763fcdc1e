#pragma once

#include <algorithm>
#include <cstdint>

#include "absl/time/time.h"

namespace recon {

// Notices that something stands still which should move, and how often that should be said. Pure; not
// thread-safe.
class StallWatch {
 public:
  // What has not moved for so long stands still.
  static constexpr absl::Duration kFirst = absl::Seconds(10);
  // It is said again after twice the time, but not less often than this.
  static constexpr absl::Duration kLongest = absl::Minutes(1);

  // `first`: when it is said first; zero for what others have waited for already.
  explicit StallWatch(absl::Duration first = kFirst) : first_(first) {}

  // `progress` is any number that changes whenever it moves. Returns whether it should be said now that it
  // stands still.
  bool Note(uint64_t progress, absl::Time now) {
    if (progress != progress_ || since_ == absl::InfiniteFuture()) {
      progress_ = progress;
      since_ = now;
      wait_ = first_;
      due_ = now + first_;
    }
    if (now < due_) return false;
    wait_ = std::clamp(wait_ * 2, kFirst, kLongest);
    due_ = now + wait_;
    return true;
  }
  // Nothing is expected to move: before a job, and after it.
  void Reset() { since_ = absl::InfiniteFuture(); }

  // For how long nothing has moved; zero where nothing stands still.
  absl::Duration Standing(absl::Time now) const {
    return Waited(now) < first_ ? absl::ZeroDuration() : Waited(now);
  }
  // For how long nothing has moved, without a time that does not count as standing still.
  absl::Duration Waited(absl::Time now) const {
    return since_ == absl::InfiniteFuture() ? absl::ZeroDuration() : now - since_;
  }

 private:
  absl::Duration first_;
  uint64_t progress_ = 0;
  absl::Time since_ = absl::InfiniteFuture();
  absl::Time due_ = absl::InfiniteFuture();
  absl::Duration wait_ = kFirst;
};

}  // namespace recon
