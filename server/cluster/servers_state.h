#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace recon {

// What the state of one server is.
struct PlaceState {
  uint32_t server = 0;  // 0: the head.
  // It has no log, or only a part of one, that leads further from its snapshot.
  bool lost = false;
  uint64_t generation = 0;  // Its snapshot; 0: none.
  uint64_t sequence = 0;    // The last record of its log that it has.
  // If it was asked: pushes in its log that the newest snapshot lacks, and their samples.
  uint64_t pushes_beyond = 0;
  uint64_t samples_beyond = 0;
  // The upload of the workers' state that it has, where workers have the optimizer (WorkersState).
  uint64_t state_version = 0;
};

// What the other servers of a job have come to, all together.
struct ServersState {
  bool complete = false;  // Every place has a server that has restored its state.
  bool live = false;      // And all of them have begun the epoch.
  bool all_have_values = false;
  // One takes no pushes until there is a snapshot of what it has now.
  bool needs_snapshot = false;
  // The highest that any of them knows of.
  uint64_t highest_epoch = 0;
  uint64_t highest_frontier = 0;
  // The longest, in seconds, as ParamServer::LogPosition has it.
  double replay_seconds = 0;
  // One of them wants a snapshot, as JobLog::wants_snapshot() says.
  bool log_wants_snapshot = false;
  // This names the servers whose push logs are full, and says why; it is empty if none is.
  std::string full_logs;
  // Of each, from place 1 on, as it said when it was ready; of a live one the sequence is the last it has
  // reported.
  std::vector<PlaceState> places;
  // Why their shards are of different states, as a sentence; empty if they are not.
  std::string mixed_state;
};

}  // namespace recon
