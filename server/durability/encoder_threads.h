#pragma once

#include <atomic>
#include <cstdint>
#include <functional>

#include "absl/status/status.h"
#include "absl/time/time.h"

namespace recon {

// Runs `work` on so many threads of its own, waits for them and returns the first error. On fewer threads
// where the machine allows no more, on the calling one without any. In the background they give way to
// others.
absl::Status RunEncoders(int threads, bool background, const std::function<absl::Status()>& work);

// Lets others have the rest of the time. Made, used and destroyed by the thread it is for.
class Pacer {
 public:
  // Does nothing unless in the background. `hurry`, which outlives it, is not 0: somebody waits.
  Pacer(bool background, const std::atomic<int>* hurry);
  // After a piece of work. Time that the thread had to wait for a core is rest, too.
  void Rest();

 private:
  bool MemoryIsShort() const;

  const bool background_;
  const std::atomic<int>* const hurry_;
  const uint64_t pages_before_;  // In use.
  double used_before_;           // CPU seconds.
  absl::Time rested_;
};

}  // namespace recon
