#pragma once

#include <cstdint>

#include "absl/time/time.h"

namespace recon {

// The only source of time. Code that decides takes `absl::Time now` as an argument instead.
// All functions are thread-safe.

// Wall-clock time that never steps back within the process: the time of day when the process
// started plus a monotonic clock.
absl::Time Now();

// Time since this process was started by the operating system (from /proc, 10 ms resolution), so that
// loading and linking count too. Falls back to the time since the first call where /proc is absent.
absl::Duration ProcessUptime();

// Nanoseconds of a monotonic clock, for measuring intervals.
int64_t MonotonicNanos();

}  // namespace recon
