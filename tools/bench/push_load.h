#pragma once

#include <atomic>
#include <cstdint>
#include <thread>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/time/time.h"
#include "common/base/clock.h"
#include "common/base/mutex.h"
#include "server/param_server.h"

namespace recon {

// Pushes FP16 gradients, in frames as large as a worker's, as fast as the server takes them, some frames in
// flight.
class PushLoad {
 public:
  // `params` must outlive it.
  PushLoad(ParamServer* params, uint32_t worker);
  ~PushLoad();

  // Frames acknowledged, and the longest time without one, since the last call.
  struct Taken {
    uint64_t frames = 0;
    double longest_gap = 0;
    double slowest = 0;
  };
  Taken Take();
  // The first push that was refused, if one was.
  absl::Status status();

 private:
  void Run();

  ParamServer* const params_;
  const uint32_t worker_;
  const uint64_t incarnation_;  // Of its own: its steps begin anew.
  std::atomic<bool> stop_{false};
  Mutex mu_;
  int in_flight_ ABSL_GUARDED_BY(mu_) = 0;
  absl::Time last_ ABSL_GUARDED_BY(mu_) = Now();
  Taken taken_ ABSL_GUARDED_BY(mu_);
  absl::Status status_ ABSL_GUARDED_BY(mu_);
  std::thread thread_;
};

}  // namespace recon
