#pragma once

#include <map>
#include <string>
#include <vector>

#include "absl/time/time.h"
#include "common/base/ids.h"
#include "proto/progress.pb.h"

namespace recon {

// How long each worker's step takes, and for which part of it its training waits for other workers' pushes:
// over the last seconds, from the sums that workers report and from how long replies to them waited.
//
// Pure: no clock, `now` is an argument; not thread-safe.
class StepShares {
 public:
  struct Share {
    double own_seconds = 0;  // Of a step, without waiting for others.
    double waits = 0;        // Of a step's time, 0 to 1.
  };
  struct Worker {
    std::string name;
    double batch_seconds = 0;
    Share share;
  };

  // A worker's sums, newer ones with each report. `waited_seconds`: how long replies to its frames have
  // waited for others, in sum. Sums that are less than they were, or none, begin anew.
  void Report(WorkerId worker, const StepWork& work, double waited_seconds, absl::Time now);
  void Forget(WorkerId worker) { workers_.erase(worker); }
  // Null until it has made a step in a window of some seconds.
  const Share* Find(WorkerId worker) const;

  // "w3 (0.051 s a batch) holds up 2 workers, which wait 88 % of the time": the one whose own part of a step
  // is the longest, if others wait for a good part of theirs; else empty.
  static std::string WhoHoldsUp(const std::vector<Worker>& workers);

 private:
  struct Window {
    StepWork begin;
    double waited_begin = 0;
    absl::Time begun_at;
    bool known = false;
    Share share;
  };

  std::map<WorkerId, Window> workers_;
};

}  // namespace recon
