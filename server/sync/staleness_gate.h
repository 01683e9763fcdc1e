#pragma once

#include <cstdint>
#include <map>
#include <set>
#include <vector>

#include "absl/time/time.h"
#include "common/base/ids.h"

namespace recon {

// The one rule of synchronisation: the reply to a worker's push of step t is released when every active
// worker has pushed all steps before t + 1 - bound. Bound 0 is bulk-synchronous (BSP), s is stale-
// synchronous (SSP; Ho et al., NIPS 2013), unlimited is asynchronous (ASP).
//
// Only replies wait; nothing here delays an update. With bound 0 the gate also says which steps are
// closed: every active worker has pushed them.
//
// Threads: none of its own; the caller serializes. No clock: `now` and deadlines are arguments.
class StalenessGate {
 public:
  static constexpr int kUnlimited = -1;
  using Ticket = uint64_t;

  // `frontier`: first step that is not closed, from a snapshot; 0 for a new job.
  StalenessGate(int bound, uint64_t frontier) : bound_(bound), frontier_(frontier) {}

  int bound() const { return bound_; }
  // First step that some active worker has not pushed; the highest such step ever, if none is active.
  uint64_t frontier() const { return frontier_; }

  // The worker takes part from max(frontier, next_step), which is returned. If it is active already it
  // moves up to that step, never back.
  uint64_t Join(WorkerId worker, uint64_t next_step);
  // It takes no part: nobody waits for it.
  void Leave(WorkerId worker);
  bool active(WorkerId worker) const { return active_.count(worker) != 0; }
  // First step the worker has not pushed; 0 if it is not active.
  uint64_t next_step(WorkerId worker) const;

  // The worker's push of `step` is complete; steps may complete out of order.
  void Advance(WorkerId worker, uint64_t step);

  // Whether a reply to a push of `step` may go out now.
  bool Open(uint64_t step) const;

  // Queues a reply; it comes back from TakeReleased() or TakeExpired() once.
  void Wait(Ticket ticket, uint64_t step, absl::Time deadline);
  std::vector<Ticket> TakeReleased();
  std::vector<Ticket> TakeExpired(absl::Time now);
  size_t waiting() const { return waiting_.size(); }

 private:
  struct Waiting {
    uint64_t step;
    absl::Time deadline;
  };

  struct Progress {
    uint64_t next_step = 0;
    std::set<uint64_t> ahead;  // Pushed, but beyond a step that is not.
  };

  void MoveFrontier();

  int bound_;
  uint64_t frontier_;
  std::map<WorkerId, Progress> active_;
  std::map<Ticket, Waiting> waiting_;
};

}  // namespace recon
