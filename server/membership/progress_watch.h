#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <optional>

#include "absl/time/time.h"
#include "common/base/ids.h"

namespace recon {

// Notices workers that are alive and stand still: one whose device hangs still sends heartbeats, and keeps
// its leases. How long a batch may take nobody has to say: a worker's last ones tell, the median of their
// times and the median of the distances from it.
//
// Pure: no clock, `now` is an argument; not thread-safe.
class ProgressWatch {
 public:
  static constexpr absl::Duration kWordMax = absl::Minutes(10);

  // No worker is taken to stand still sooner than after `least`.
  explicit ProgressWatch(absl::Duration least) : least_(least) {}

  // How many batches a worker has computed so far.
  void Report(WorkerId worker, uint64_t batches, absl::Time now);
  // It had, or has, a reason to compute nothing: its time begins now. What it waits counts for how long its
  // batches take.
  void Excuse(WorkerId worker, absl::Time now);
  // It says so itself, and nobody else knows: for kWordMax since it had moved, or was excused.
  void ExcuseByWord(WorkerId worker, absl::Time now);
  void ExcuseAll(absl::Time now);
  void Forget(WorkerId worker) { workers_.erase(worker); }

  // How long its next batch may take, reading it included. While little is known of it: ten minutes, or, if
  // `others_wait` for it, twice as long as any other's.
  absl::Duration Patience(WorkerId worker, bool others_wait) const;
  bool StandsStill(WorkerId worker, bool others_wait, absl::Time now) const;
  // Whether it has computed nothing for longer than the least patience since it had a reason to.
  bool Late(WorkerId worker, absl::Time now) const;

 private:
  struct Worker {
    uint64_t batches = 0;
    absl::Time moved_at;        // When there were new batches, the last time.
    absl::Time expected_since;  // Then, or later.
    absl::Time trusted_since;   // It had moved then, or was excused by somebody else.
    std::deque<double> recent;  // Seconds of a batch, of each report with new ones.
  };

  // None while little is known of it.
  std::optional<absl::Duration> OwnPatience(const Worker& worker) const;

  absl::Duration least_;
  std::map<WorkerId, Worker> workers_;
};

}  // namespace recon
