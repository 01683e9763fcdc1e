#pragma once

#include <algorithm>
#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <set>
#include <vector>

#include "common/base/check.h"
#include "common/base/ids.h"
#include "common/base/pool_allocator.h"

namespace recon {

// The one rule of synchronisation: the reply to a worker's push of step t is released when every active
// worker has pushed all steps before t + 1 - bound. Bound 0 is bulk-synchronous (BSP), s is stale-
// synchronous (SSP; Ho et al., NIPS 2013), unlimited is asynchronous (ASP).
//
// Only replies wait (ReplyQueue); nothing here delays an update. With bound 0 the gate also says which steps
// are closed: every active worker has pushed them.
//
// Pure; not thread-safe.
class StalenessGate {
 public:
  static constexpr int kUnlimited = -1;

  // `frontier`: first step that is not closed, from a snapshot; 0 for a new job.
  StalenessGate(int bound, uint64_t frontier) : bound_(bound), frontier_(frontier) {
    RECON_CHECK_GE(bound, kUnlimited);
  }

  int bound() const { return bound_; }
  bool synchronous() const { return bound_ == 0; }
  // First step that some active worker has not pushed; the highest such step ever, if none is active. With
  // bound 0 and nobody active, a push moves it, too: every push that is acknowledged is in a closed step.
  uint64_t frontier() const { return frontier_; }

  // A worker and the first step it has no acknowledgement for; it takes no part yet. What is known of a
  // worker stays when it leaves, so that pushes that are complete meanwhile count.
  void Know(WorkerId worker, uint64_t next_step);
  void Forget(WorkerId worker);
  // The worker takes part, from the step that is returned: `next_step`, or where those are later the frontier
  // or `begun`, a step that is not closed for anything yet (unlimited workers have steps of their own). It
  // never moves back.
  uint64_t Join(WorkerId worker, uint64_t next_step, uint64_t begun = 0);
  // It takes no part: nobody waits for it.
  void Leave(WorkerId worker);
  bool active(WorkerId worker) const;
  // First step the worker has not pushed; 0 if it is unknown.
  uint64_t next_step(WorkerId worker) const;
  // Who takes part and has not pushed all of `step`, or of one before.
  std::vector<WorkerId> Awaited(uint64_t step) const;
  // The worker has an acknowledgement of every step before `next_step`.
  void Raise(WorkerId worker, uint64_t next_step);

  // The worker's push of `step` is complete; steps may complete out of order.
  void Advance(WorkerId worker, uint64_t step);

  // No step before `frontier` is asked of anyone.
  void SkipTo(uint64_t frontier) { frontier_ = std::max(frontier_, frontier); }

  // Another gate decides (the head's, of a job with many servers): replies wait here until that has come so
  // far. What is known of workers here moves nothing any more.
  void Follow(uint64_t frontier, bool anyone_active);
  bool any_active() const;
  // How many take part. Not of a gate that follows another.
  size_t active_workers() const;

  // Whether a reply to a push of `step` may go out now.
  bool Open(uint64_t step) const;

 private:
  struct Progress {
    bool active = false;
    uint64_t next_step = 0;
    std::set<uint64_t, std::less<uint64_t>, PoolAllocator<uint64_t>>
        ahead;  // Pushed, but beyond a step that is not.
  };

  static void RaiseTo(uint64_t next_step, Progress* progress);
  void MoveFrontier();
  // With bound 0 and nobody active.
  void MoveFrontierAlone(const Progress& progress);

  int bound_;
  uint64_t frontier_;
  std::map<WorkerId, Progress> workers_;
  std::optional<bool> followed_active_;  // As Follow() was told.
};

}  // namespace recon
