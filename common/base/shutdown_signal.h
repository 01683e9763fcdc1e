#pragma once

#include "absl/time/time.h"

namespace recon {

// SIGTERM and SIGINT as something to wait for. A second signal ends the process at once.
//
// A handler, not a blocked signal: libraries start threads before main() that block nothing.
// Threads: Install() once, in main; Wait() on any thread.
class ShutdownSignal {
 public:
  static void Install();

  // Waits until a signal came or `timeout` passed; true if one came (now or earlier).
  static bool Wait(absl::Duration timeout);
};

}  // namespace recon
