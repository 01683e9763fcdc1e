#include "common/base/clock.h"

#include <time.h>
#include <unistd.h>

#include <cstdio>
#include <cstring>
#include <string>

namespace recon {
namespace {

int64_t Nanos(clockid_t clock) {
  timespec ts;
  clock_gettime(clock, &ts);
  return int64_t{ts.tv_sec} * 1'000'000'000 + ts.tv_nsec;
}

// Field 22 of /proc/self/stat: start time in clock ticks since boot. Negative if unreadable.
double StartSecondsSinceBoot() {
  FILE* file = std::fopen("/proc/self/stat", "r");
  if (file == nullptr) return -1;
  char text[1024];
  const size_t size = std::fread(text, 1, sizeof(text) - 1, file);
  std::fclose(file);
  text[size] = '\0';
  const char* at = std::strrchr(text, ')');  // The command name may hold spaces.
  for (int field = 2; at != nullptr && field < 22; ++field) at = std::strchr(at + 1, ' ');
  if (at == nullptr) return -1;
  return std::strtod(at + 1, nullptr) / static_cast<double>(sysconf(_SC_CLK_TCK));
}

}  // namespace

int64_t MonotonicNanos() { return Nanos(CLOCK_MONOTONIC); }

absl::Time Now() {
  static const int64_t offset = Nanos(CLOCK_REALTIME) - Nanos(CLOCK_MONOTONIC);
  return absl::FromUnixNanos(MonotonicNanos() + offset);
}

absl::Time WallNow() { return absl::FromUnixNanos(Nanos(CLOCK_REALTIME)); }

absl::Duration ProcessUptime() {
  static const double started = StartSecondsSinceBoot();
  static const int64_t first_call = MonotonicNanos();
  if (started < 0) return absl::Nanoseconds(MonotonicNanos() - first_call);
  return absl::Nanoseconds(Nanos(CLOCK_BOOTTIME)) - absl::Seconds(started);
}

}  // namespace recon
