#pragma once

#include <string>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "common/base/ids.h"
#include "proto/config.pb.h"
#include "proto/progress.pb.h"
#include "server/tuning/codec_controller.h"
#include "server/tuning/step_window.h"

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
  bool in_use() const { return !window_.works().empty(); }
  // Nobody is, or it is not trying anything.
  bool settled() const { return !in_use() || controller_.settled(); }

  // As StepWindow's.
  absl::Status Report(WorkerId worker, const StepWork& work) { return window_.Report(worker, work); }
  void Forget(WorkerId worker) { window_.Forget(worker); }

  // The job goes on by another policy: what was measured says nothing of it.
  void Restart();

  // Call it a few times a second; true if choice() has changed.
  bool Tick(absl::Time now);

 private:
  void Publish();
  bool AllUseIt() const;
  // Of all workers.
  struct Sums;
  Sums SumsOfAll() const;

  CodecController controller_;
  CodecChoice choice_;
  StepWindow window_;
  absl::Time changed_at_ = absl::InfinitePast();
};

}  // namespace recon
