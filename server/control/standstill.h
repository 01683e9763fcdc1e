#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/time/time.h"
#include "server/control/ports.h"
#include "server/membership/idle_watch.h"
#include "server/membership/stall_watch.h"

namespace recon {

// For how long a job has not moved: nobody has trained it (idle), and, while it runs, nothing moves though
// something should (it stands still). Pure: no clock, `now` is an argument; not thread-safe.
class StandstillWatch {
 public:
  // `progress`: as the watches'. `runs`: the job is expected to move. True if it should be said now that it
  // stands still.
  bool Note(uint64_t progress, bool runs, absl::Time now) {
    idle_.Note(progress, now);
    if (runs) return stall_.Note(progress, now);
    stall_.Reset();
    return false;
  }

  absl::Duration Idle(absl::Time now) const { return idle_.Idle(now); }
  // Zero for a job that does not stand still.
  absl::Duration Standing(absl::Time now) const { return stall_.Standing(now); }

 private:
  StallWatch stall_;
  IdleWatch idle_;
};

// What can keep a job from moving.
struct JobNeeds {
  struct Holder {
    std::string worker;
    size_t leases = 0;
    absl::Duration silence;  // Since it was heard of.
  };
  std::optional<std::string> missing_servers;  // As a sentence; none if all are there.
  LogUse log;
  std::string snapshot_error;  // Of the last snapshot; empty if there was none.
  int workers_alive = 0;
  std::vector<Holder> holders;  // Of leases.
};

// What such a job waits for, as a sentence: the first of these that explains it. Pure.
std::string WhatJobWaitsFor(const JobNeeds& needs);

}  // namespace recon
