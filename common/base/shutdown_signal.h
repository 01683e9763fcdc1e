#pragma once

#include "absl/time/time.h"

namespace recon {

// SIGTERM and SIGINT as something to wait for. Block() must be called in main before any thread
// starts; then one thread asks Wait(). A second signal ends the process at once.
class ShutdownSignal {
 public:
  static void Block();

  // Waits until a signal came or `timeout` passed; true if one came (now or earlier).
  static bool Wait(absl::Duration timeout);
};

}  // namespace recon
