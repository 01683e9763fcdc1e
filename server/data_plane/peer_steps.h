#pragma once

#include <cstdint>
#include <vector>

#include "common/base/ids.h"
#include "server/sync/step_closing.h"

namespace recon {

// What the head's ParamServer tells the job's other servers; see common/DATA_PATHS.md, "Many servers". Called
// under its lock, in the order in which it has to take effect everywhere: must not block, nor call it back.
class Followers {
 public:
  virtual ~Followers() = default;
  // A step is closed with these contributors, in the head's log, for these shards of that server.
  virtual void OnClosing(uint32_t server, const StepClosing& closing) = 0;
  // As StalenessGate::Follow() takes it.
  virtual void OnFrontier(uint64_t frontier, bool anyone_active) = 0;
  // As WorkersState::CommitState() takes it.
  virtual void OnStateCommitted(uint64_t upload) = 0;
};

// What a server hears of steps from the job's other servers.
//
// Threads: thread-safe in a ParamServer. It does not block.
class PeerSteps {
 public:
  virtual ~PeerSteps() = default;

  // The head: parts of a push, which has `push_parts` on all servers together, are delivered to these shards
  // of another server.
  virtual void NoteDelivered(WorkerId worker, Incarnation incarnation, uint64_t step,
                             const std::vector<uint32_t>& shards, uint32_t push_parts) = 0;
  // The head: a server has begun anew, and has none of what it was sent of steps that are not closed.
  virtual void ForgetDeliveriesTo(uint32_t server) = 0;

  // The others: what the head says, in its order. Whoever waits for a step that is closed without him is told
  // so.
  virtual void FollowClosing(const StepClosing& closing) = 0;
  virtual void FollowFrontier(uint64_t frontier, bool anyone_active) = 0;
};

}  // namespace recon
