#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <vector>

#include "absl/time/time.h"
#include "common/base/ids.h"
#include "server/scheduler/split_queue.h"

namespace recon {

// Who works on what, until when. A lease is renewed by its holder's heartbeats; one that expires may
// be granted to somebody else.
//
// Threads: none of its own; the caller serializes. No clock: `now` is an argument. Grants are not kept
// over a restart of the server: only completions are.
class LeaseTable {
 public:
  struct Lease {
    Task task;
    WorkerId holder;
    absl::Time expires;
    std::optional<uint64_t> pushes;
  };

  // Lease numbers start above `first`, so that those of an earlier cluster epoch are never valid.
  LeaseTable(absl::Duration duration, uint64_t first) : duration_(duration), next_(first) {}

  // `pushes`: that have come of the holder so far; none for a lease that goes on, for which some came before.
  LeaseId Grant(const Task& task, WorkerId holder, absl::Time now,
                std::optional<uint64_t> pushes = std::nullopt);
  std::vector<Lease> LeasesOf(WorkerId holder) const;
  // Whether something was pushed since it was granted, or may have been: `pushes` have come of its holder.
  bool PushedFor(LeaseId lease, uint64_t pushes) const;
  // Ends the lease and returns its task; nothing if the worker does not hold it.
  std::optional<Task> Take(LeaseId lease, WorkerId holder);
  // Its first split is done: the lease is of the others, and ends with the last. False if the worker does not
  // hold it, or `first` is not its first split.
  bool TakeFirst(LeaseId lease, WorkerId holder, const Task& first);
  // Renews a lease that the worker holds; a grant whose reply was lost is never renewed, and so expires.
  void Renew(LeaseId lease, WorkerId holder, absl::Time now);

  bool Holds(LeaseId lease, WorkerId holder) const;
  // What is left of its task; null if the worker does not hold it.
  const Task* Find(LeaseId lease, WorkerId holder) const;
  std::vector<LeaseId> HeldBy(WorkerId holder) const;
  std::set<WorkerId> Holders() const;

  // Ends leases and returns their tasks: all of one worker, or those that have expired.
  std::vector<Task> TakeAllOf(WorkerId holder);
  std::vector<Lease> TakeExpired(absl::Time now);

 private:
  // Ends one that there is.
  Lease Remove(std::map<LeaseId, Lease>::iterator lease);

  absl::Duration duration_;
  uint64_t next_;
  std::map<LeaseId, Lease> leases_;
  // The numbers of each holder's leases; who holds none is not there.
  std::map<WorkerId, std::set<LeaseId>> held_;
};

}  // namespace recon
