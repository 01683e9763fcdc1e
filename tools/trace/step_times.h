#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "tools/trace/timeline.h"

namespace recon {

// What a worker's training thread waits for, or does.
enum class StepPart {
  kComputing,
  kEvaluating,
  // It waits for its pushes. While all of its frames that are under way wait at servers for other workers'
  // pushes:
  kOthers,
  // otherwise for what its other frames do, each for its share: they are between worker and server, or on
  // their way back;
  kLink,
  // in a server: received, in its queues, part of a closing step, encoded as replies;
  kServer,
  // written to the push log;
  kLog,
  // applied (or kept for their step, where it is synchronous);
  kApply,
  // or none is under way, and the next push is encoded.
  kEncoding,
  kPulling,  // Parameters, other than with a push.
  kWork,     // For a lease, or for a completion to be noted.
  kRest,     // Between batches: reading data, what a script does.
  kCount,
};

// A word or three.
absl::string_view StepPartName(StepPart part);

// Where the time of a worker's steps goes. A step is a push here: a round of local steps is one.
struct StepTimes {
  std::string worker;
  uint64_t steps = 0;
  double seconds = 0;  // Of the trace: all of it, if the worker was there to its end.
  std::array<double, static_cast<size_t>(StepPart::kCount)> parts = {};  // Seconds; their sum is `seconds`.

  double of(StepPart part) const { return parts[static_cast<size_t>(part)]; }
  double step_seconds() const { return seconds / static_cast<double>(steps); }
  // Without what it waits for other workers: who has most is who others wait for.
  double own_seconds() const { return (seconds - of(StepPart::kOthers)) / static_cast<double>(steps); }
};

// Of each worker that has pushed, by own_seconds(), the slowest first.
std::vector<StepTimes> MeasureSteps(const Timeline& timeline);

// Three lines without their ends: the slowest worker, the one in the middle, and what that says.
std::vector<std::string> ExplainSteps(const Timeline& timeline);

}  // namespace recon
