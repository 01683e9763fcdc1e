#pragma once

#include <cmath>
#include <cstdint>
#include <map>
#include <string>

#include "proto/control.pb.h"

namespace recon {

// What a worker does just now: rates and shares between two of its reports, NaN where it has not said. Shares
// are of its steps' time, 0 to 1: `computing` gradients, `waiting` for other workers' pushes, and on the
// `link`, which is whatever else it waited for its pushes.
struct WorkerRates {
  float push_bytes_per_second = NAN, pull_bytes_per_second = NAN;
  float push_latency_ms = NAN;  // From sending a push to its reply.
  float computing = NAN, waiting = NAN, link = NAN;
  uint64_t pushes = 0;  // Between the two reports.
};

// Pure; not thread-safe.
class ProgressRates {
 public:
  // The worker's rates, by this report and the one before. The same report again changes nothing.
  WorkerRates Note(const MemberStatus& member);
  void Forget(const std::string& name) { workers_.erase(name); }
  // Null for a worker that is not known.
  const WorkerRates* Find(const std::string& name) const;

 private:
  struct Worker {
    uint64_t incarnation = 0;
    int64_t reported_ms = 0;  // By the worker's clock.
    StepWork work;
    WorkerRates rates;
  };
  std::map<std::string, Worker> workers_;
};

}  // namespace recon
