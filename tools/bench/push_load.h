#pragma once

#include <atomic>
#include <cstdint>
#include <thread>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/time/time.h"
#include "common/base/clock.h"
#include "common/base/mutex.h"
#include "server/data_plane/param_server.h"

namespace recon {

// Pushes FP16 gradients, in frames as large as a worker's, as fast as the server takes them, some frames in
// flight.
class PushLoad {
 public:
  // `params` must outlive it.
  PushLoad(ParamServer* params, uint32_t worker);
  ~PushLoad();

  // Frames acknowledged since the last call; seconds.
  struct Taken {
    uint64_t frames = 0;
    double slowest = 0;
    // For each second since then, the last one cut short: how long there had been no acknowledgement, at
    // most. Never empty.
    std::vector<double> longest_gaps;
  };
  Taken Take();
  // The first push that was refused, if one was.
  absl::Status status();

 private:
  void Run();
  // No acknowledgement between last_ and `now`.
  void NoteGap(absl::Time now) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);

  ParamServer* const params_;
  const uint32_t worker_;
  const uint64_t incarnation_;  // Of its own: its steps begin anew.
  std::atomic<bool> stop_{false};
  Mutex mu_;
  int in_flight_ ABSL_GUARDED_BY(mu_) = 0;
  absl::Time last_ ABSL_GUARDED_BY(mu_) = Now();
  absl::Time taken_since_ ABSL_GUARDED_BY(mu_) = Now();
  Taken taken_ ABSL_GUARDED_BY(mu_);
  absl::Status status_ ABSL_GUARDED_BY(mu_);
  std::thread thread_;
};

}  // namespace recon
