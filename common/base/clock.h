#pragma once

#include <cstdint>

#include "absl/time/time.h"

namespace recon {

// The only source of time. Code that decides takes `absl::Time now` as an argument instead.
// All functions are thread-safe.

// For decisions: a clock that neither jumps nor is set. It began at the time of day when the process started,
// so that other processes' numbers are near, but it does not follow when that is corrected.
absl::Time Now();

// The time of day, for what is shown, stored, or compared between machines. It may jump in either direction.
absl::Time WallNow();

// Time since this process was started by the operating system (from /proc, 10 ms resolution), so that
// loading and linking count too. Falls back to the time since the first call where /proc is absent.
absl::Duration ProcessUptime();

// Nanoseconds of a monotonic clock, for measuring intervals.
int64_t MonotonicNanos();

}  // namespace recon
