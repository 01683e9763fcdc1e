#pragma once

#include <algorithm>

#include "absl/time/time.h"

namespace recon {

// How long a server's start has taken. Moments are times since it began.
//
// Pure; not thread-safe.
class StartTimes {
 public:
  // Workers can come from now on. Only the first call counts, as with NoteWorker().
  void NoteReady(absl::Duration at) { NoteFirst(at, &ready_); }
  // One has come.
  void NoteWorker(absl::Duration at) { NoteFirst(at, &worker_); }
  // A push is acknowledged; true for the first.
  bool NotePush(absl::Duration at) { return NoteFirst(at, &push_); }

  // Until the first acknowledged push, in milliseconds; 0 until there is one. And the same without the time
  // in which no worker had come.
  double push_ms() const { return absl::ToDoubleMilliseconds(push_); }
  double push_without_waiting_ms() const {
    return absl::ToDoubleMilliseconds(push_ - std::max(absl::ZeroDuration(), worker_ - ready_));
  }

 private:
  static bool NoteFirst(absl::Duration at, absl::Duration* first) {
    if (*first != absl::ZeroDuration()) return false;
    *first = at;
    return true;
  }

  absl::Duration ready_;
  absl::Duration worker_;
  absl::Duration push_;
};

}  // namespace recon
