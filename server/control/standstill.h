#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "absl/time/time.h"
#include "common/base/stall_watch.h"
#include "server/control/ports.h"
#include "server/membership/idle_watch.h"

namespace recon {

// What a job should do next.
enum class Expected {
  kNothing,  // It is finished, or is being drained.
  kToBegin,  // It has not begun.
  kToGoOn,   // It has: pushes should come, or its last snapshot.
};

// For how long a job has not moved: nobody has trained it (idle), and nothing has moved though something
// should: a job that has begun stands still, whatever it lacks, and one that has not begun waits. Pure: no
// clock, `now` is an argument; not thread-safe.
class StandstillWatch {
 public:
  // `progress`: as the watches'. True if it should be said now that nothing moves.
  bool Note(uint64_t progress, Expected expected, absl::Time now);

  absl::Duration Idle(absl::Time now) const { return idle_.Idle(now); }
  // Zero for a job that does not stand still, or has not begun.
  absl::Duration Standing(absl::Time now) const;
  // Zero for a job that has begun, or has waited for a short while only.
  absl::Duration NotBegun(absl::Time now) const;
  // That nothing moves and for how long, as the begin of a sentence; empty if both are zero.
  std::string Said(absl::Time now) const;

 private:
  Expected expected_ = Expected::kNothing;
  StallWatch stall_;
  IdleWatch idle_;
};

// What can keep a job from moving, in any phase.
struct JobNeeds {
  struct Holder {
    std::string worker;
    size_t leases = 0;
    absl::Duration silence;  // Since it was heard of.
    bool awaited = true;     // The open step has no push of it.
  };
  bool begun = true;
  std::string missing_servers;  // As OtherServers::Missing() says it.
  std::string full_logs;        // As ServersState has it.
  std::string epoch_error;      // Why no cluster epoch could be begun with the servers that are there.
  int workers_alive = 0;
  int workers_min = 1;        // A job begins with.
  bool lacks_values = false;  // Initial parameters have not come whole.
  std::string values_from;    // The worker who was asked for them; empty: none was.
  LogUse log;
  bool saving = false;             // It cannot go on before a snapshot is published,
  absl::Duration snapshot_takes;   // which is under way for so long; zero: none is.
  std::string snapshot_directory;  // As people read it.
  std::string snapshot_error;      // Of the last snapshot; empty if there was none.
  std::string start_error;         // Why a job cannot begin that has all that it needs.
  std::vector<Holder> holders;     // Of leases, and whom the open step waits for.
};

// What such a job waits for, as a sentence that names all of it that is known to be missing; where nothing
// is, those whose pushes should come. Pure.
std::string WhatJobWaitsFor(const JobNeeds& needs);

}  // namespace recon
