#pragma once

#include <cstdint>

namespace recon {

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
};

}  // namespace recon
