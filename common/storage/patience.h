#pragma once

#include <atomic>
#include <cstdint>

#include "absl/functional/function_ref.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"

namespace recon {

// How long storage that does not answer is asked again, from the first failure of a request on. Thread-safe.
class Patience {
 public:
  explicit Patience(absl::Duration duration) : ms_(absl::ToInt64Milliseconds(duration)) {}
  // No more than this, for requests under way, too.
  void Cap(absl::Duration duration) {
    const int64_t most = absl::ToInt64Milliseconds(duration);
    for (int64_t now = ms_.load(); now > most && !ms_.compare_exchange_weak(now, most);) {
    }
  }
  absl::Duration Get() const { return absl::Milliseconds(ms_.load()); }

 private:
  std::atomic<int64_t> ms_;
};

// RECON_STORE_PATIENCE, a duration such as 30s; limits::kStorePatience where it is not set. InvalidArgument
// for anything else.
absl::StatusOr<absl::Duration> PatienceFromEnvironment();

// Runs `attempt` until it returns anything but Unavailable or patience is over, with waits that double and
// are drawn by chance. Says once in the log that it waits.
absl::Status RetryUnavailable(const Patience& patience, absl::FunctionRef<absl::Status()> attempt);

}  // namespace recon
