#pragma once

#include <map>
#include <string>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "common/base/ids.h"
#include "proto/progress.pb.h"
#include "server/tuning/policy_controller.h"
#include "server/tuning/step_window.h"

namespace recon {

// What --sync auto stands for: measures windows of all workers' steps for the controller, from what they
// report and what the server has seen of their pushes.
//
// Pure: no clock, `now` is an argument; not thread-safe.
class PolicyTuner {
 public:
  // Of a worker, sums since it registered.
  struct Pushes {
    uint64_t count = 0;
    double staleness = 0;
    double waiting_seconds = 0;  // Replies that waited for other workers' pushes.
  };

  explicit PolicyTuner(const PolicyController::Limits& limits) : controller_(limits) {}

  const PolicyController::Choice& choice() const { return controller_.choice(); }
  const std::string& reason() const { return controller_.reason(); }

  // As StepWindow's. `loss`: of the worker's last batch; 0: none yet.
  absl::Status Report(WorkerId worker, const StepWork& work, double loss);
  void Forget(WorkerId worker);

  // Whether Tick() has use for what the server knows of pushes.
  bool Due(absl::Time now) const;
  // True if choice() has changed: it is to be in force from now on.
  bool Tick(absl::Time now, const std::map<WorkerId, Pushes>& pushes, bool codec_settled);

 private:
  // False if some worker's part of it is not known.
  bool Measure(const std::map<WorkerId, Pushes>& pushes, PolicyController::Window* window) const;

  PolicyController controller_;
  StepWindow window_;
  // Of the reports since the window began.
  double loss_sum_ = 0;
  uint64_t losses_ = 0;
  std::map<WorkerId, Pushes> pushes_at_begin_;
  absl::Time changed_at_ = absl::InfinitePast();
};

}  // namespace recon
