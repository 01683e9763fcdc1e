#pragma once

#include <optional>
#include <thread>

#include "absl/base/thread_annotations.h"
#include "absl/time/time.h"
#include "common/base/mutex.h"

namespace recon {

// Ends its process some time after all that is to be kept has been kept, whatever other threads wait for
// then: a library that could not start a thread of its own waits for that one for ever, and with it its
// destructors. What is on the disk is then as after a kill, which everything is made for.
//
// Threads: one of its own from the beginning, so that none has to be started at the end. Expect() on any
// thread. The destructor joins it at once: whoever gets there needs no help.
class EndGuard {
 public:
  // Destructors write nothing that takes so long.
  static constexpr absl::Duration kGrace = absl::Seconds(15);

  explicit EndGuard(absl::Duration grace = kGrace);
  ~EndGuard();
  EndGuard(const EndGuard&) = delete;
  EndGuard& operator=(const EndGuard&) = delete;

  // The process is about to end with this code: it does so within the grace, with a line in the log if it is
  // this that ends it. Called again, it changes the code only.
  void Expect(int exit_code);

 private:
  void Watch();

  const absl::Duration grace_;
  Mutex mu_;
  std::optional<int> exit_code_ ABSL_GUARDED_BY(mu_);
  bool ended_ ABSL_GUARDED_BY(mu_) = false;
  std::thread watch_;
};

}  // namespace recon
