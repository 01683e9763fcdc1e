#pragma once

#include <cstdint>
#include <string>

namespace recon {

// A job in simulated time: the coordinator that a server has, on ports that keep everything in memory
// (simulated_server.h), under simulated workers, calls and failures. One seed, one course of events. What
// holds whatever happens is checked at every step; and since time costs nothing, it also says what a cluster
// would do that nobody has at hand.
struct SimulationOptions {
  uint64_t seed = 1;
  int workers = 8;
  uint32_t data_epochs = 2;
  uint32_t splits = 40;          // Of a data epoch.
  uint32_t steps_per_split = 4;  // Each of one batch and one push.
  double step_seconds = 0.2;
  double speed_spread = 0.5;  // A worker's steps take up to so much longer, each its own.
  int bound = -1;             // As StalenessGate's.

  double call_seconds = 0.005;  // One way, on average.
  double lost_calls = 0;        // Share of requests, and of replies, that never arrive.
  double kills_per_second = 0;  // Of workers, all together; a replacement comes with the same name,
  double replacement_seconds = 2;
  double stops_per_second = 0;  // Workers that do nothing for a while (SIGSTOP).
  double stop_seconds = 4;
  double server_kills_per_second = 0;
  double server_seconds = 1;  // Until it is back.

  double heartbeat_seconds = 0.3;
  double evict_seconds = 3;
  double lease_seconds = 10;
  double lease_target = 0;        // Seconds of computing that a lease has, at least a split's.
  double give_up_seconds = 3600;  // A job that is not finished by then hangs.

  // Mistakes to be found: the test of the test. Each is of what goes into the coordinator, of what comes out
  // of it, or of the ports.
  enum class Planted {
    kNone,
    kLeasesNeverEnd,          // The coordinator is told that leases last for weeks.
    kForgetsCompletions,      // The journal acknowledges completions that it does not keep.
    kReleasesEarly,           // The data plane answers pushes that the bound holds back.
    kKeepsWaitingForTheIdle,  // The data plane does not hear that a worker has nothing to do.
    kGrantsTwice              // A worker gets the reply that was another's.
  } planted = Planted::kNone;
};

struct SimulationResult {
  std::string violation;  // What did not hold, when; empty if all did.
  double seconds = 0;     // Simulated, until the job was finished.
  // Computing that counted, over the time of all workers.
  double goodput = 0;
  uint64_t kills = 0, stops = 0, server_kills = 0, pushes = 0, redone_steps = 0, late_steps = 0;
};

SimulationResult Simulate(const SimulationOptions& options);

// Synchronous all-reduce under the same failures: a dead worker is noticed after `evict_seconds` (its peers
// hang until then), all start anew with its replacement from the last checkpoint, and do again what came
// after it. A checkpoint is written after each `checkpoint_seconds` of computing and takes `save_seconds`, in
// which nobody computes. Goodput over `seconds` of simulated time.
double SimulateRestarts(const SimulationOptions& options, double checkpoint_seconds, double save_seconds,
                        double seconds);

}  // namespace recon
