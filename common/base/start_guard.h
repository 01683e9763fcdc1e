#pragma once

#include <string>
#include <thread>

#include "absl/base/thread_annotations.h"
#include "absl/time/time.h"
#include "common/base/mutex.h"

namespace recon {

// While one exists, its process is starting, or ends without ever having served: a notice (ShutdownSignal)
// ends the process within kGrace, with 0 and a line in the log, whatever its other threads wait for: a store
// that says nothing, a disk that hangs, a log of an hour. What is on the disk is then as after a kill, which
// everything is made for. A start that ends by itself in that time goes on to hear the notice itself.
//
// Threads: one of its own, which the destructor joins at once. Several may exist.
class StartGuard {
 public:
  static constexpr absl::Duration kGrace = absl::Seconds(1);

  // `what` is starting, for the line: "the server".
  explicit StartGuard(std::string what);
  ~StartGuard();
  StartGuard(const StartGuard&) = delete;
  StartGuard& operator=(const StartGuard&) = delete;

 private:
  void Watch();
  // Whether it ended within `timeout`.
  bool EndedWithin(absl::Duration timeout);

  const std::string what_;
  Mutex mu_;
  bool ended_ ABSL_GUARDED_BY(mu_) = false;
  std::thread watch_;
};

}  // namespace recon
