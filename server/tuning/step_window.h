#pragma once

#include <map>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "common/base/ids.h"
#include "proto/progress.pb.h"

namespace recon {

// What workers' steps were made of over a while, from the sums that they report.
//
// Pure: no clock, `now` is an argument; not thread-safe.
class StepWindow {
 public:
  // A worker's sums, newer ones with each report. InvalidArgument, naming the field, for a number no sum can
  // be.
  absl::Status Report(WorkerId worker, const StepWork& work);
  // The worker has gone, or begins its sums again.
  void Forget(WorkerId worker) { works_.erase(worker); }
  const std::map<WorkerId, StepWork>& works() const { return works_; }

  void Begin(absl::Time now);
  void Cancel() { begun_ = false; }
  bool begun() const { return begun_; }
  absl::Time begun_at() const { return begun_at_; }
  // False if the workers are not those that it began with, or a sum is less than it was.
  bool SameWorkers() const;
  // What was done since it began, of workers that finished a step: the others evaluate, or wait for work.
  // What is no sum is as it is now.
  std::map<WorkerId, StepWork> Done() const;

 private:
  std::map<WorkerId, StepWork> works_;
  std::map<WorkerId, StepWork> begin_;
  bool begun_ = false;
  absl::Time begun_at_;
};

}  // namespace recon
