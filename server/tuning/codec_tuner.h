#pragma once

#include <map>
#include <string>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "common/base/ids.h"
#include "proto/control.pb.h"
#include "server/tuning/codec_controller.h"

namespace recon {

// What --codec auto stands for, the same for all workers of a job: it hands out the controller's choice,
// waits until every worker uses it, and measures a window of steps for the controller from what workers
// report.
//
// Pure: no clock, `now` is an argument; not thread-safe.
class CodecTuner {
 public:
  explicit CodecTuner(uint32_t refused_codecs) : controller_(refused_codecs) { Publish(); }

  const CodecChoice& choice() const { return choice_; }
  const std::string& reason() const { return controller_.reason(); }
  size_t rung_number() const { return controller_.rung_number(); }
  // Whether any worker is left to it.
  bool in_use() const { return !works_.empty(); }

  // A worker's sums, newer ones with each report. InvalidArgument, naming the field, for a number no sum can
  // be.
  absl::Status Report(WorkerId worker, const CodecWork& work);
  // The worker has gone, or begins its sums again.
  void Forget(WorkerId worker) { works_.erase(worker); }

  // Call it a few times a second; true if choice() has changed.
  bool Tick(absl::Time now);

 private:
  void Publish();
  bool AllUseIt() const;
  // False if the workers are not those that the window began with.
  bool SameWorkers() const;
  // What was done since the window began; steps is 0 if too little.
  struct Sums;
  Sums SumsSinceBegin() const;

  CodecController controller_;
  CodecChoice choice_;
  std::map<WorkerId, CodecWork> works_;
  bool measuring_ = false;
  std::map<WorkerId, CodecWork> begin_;  // While measuring.
  absl::Time begun_at_;
  absl::Time changed_at_ = absl::InfinitePast();
};

}  // namespace recon
