#pragma once

#include <string>

#include "absl/time/time.h"

namespace recon {

// A notice that this process should finish what it does and end, as something to wait for: SIGTERM, SIGINT,
// SIGHUP, SIGUSR1, SIGUSR2 or SIGXCPU. Schedulers send any of them some time before SIGKILL, often to the
// whole process group, and several shortly after each other. So one that comes within kGrace of the first
// changes nothing. A later one ends the process at once, by that signal, after a line to standard error.
// SIGXCPU never does: the kernel repeats it each second. SIGHUP stays ignored where it is (nohup).
//
// Handlers, not blocked signals: libraries start threads before main() that block nothing.
// Threads: Install() once, in main; the others on any thread.
class ShutdownSignal {
 public:
  static constexpr absl::Duration kGrace = absl::Seconds(5);

  // Also has writes to closed pipes return errors (SIGPIPE).
  static void Install();

  // Waits until a notice came or `timeout` passed; true if one came (now or earlier).
  static bool Wait(absl::Duration timeout);

  // Of the first that came, such as "SIGTERM"; empty if none did.
  static std::string Name();
};

}  // namespace recon
