#pragma once

#include <cstdint>
#include <optional>
#include <vector>

namespace recon::trace {

// One question for another process' time, and its answer: nanoseconds of two clocks. RFC 5905, section 8: the
// other clock is ahead by the mean of the two differences, with an error of half of what the way there and
// back took, wherever on the way that time was spent.
struct ClockReading {
  int64_t asked = 0;     // Ours.
  int64_t received = 0;  // Theirs.
  int64_t sent = 0;      // Theirs.
  int64_t answered = 0;  // Ours again.
};

// From a process' clock to another's.
struct ClockMap {
  // The other is ahead by so much at `at_ns` of ours, and by so much more each nanosecond.
  int64_t at_ns = 0;
  int64_t ahead_ns = 0;
  double drift = 0;
  // What it may be wrong by, at most, between the first reading and the last one.
  int64_t error_ns = 0;

  int64_t operator()(int64_t ours_ns) const {
    return ours_ns + ahead_ns + static_cast<int64_t>(drift * static_cast<double>(ours_ns - at_ns));
  }
};

// By the reading with the shortest way in each half of the time, or by the shortest of all where they lie too
// near to each other to say how the clocks drift. None without a reading that makes sense.
std::optional<ClockMap> AlignClocks(const std::vector<ClockReading>& readings);

}  // namespace recon::trace
