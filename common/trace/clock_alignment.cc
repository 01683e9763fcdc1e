#include "common/trace/clock_alignment.h"

#include <algorithm>
#include <cmath>

namespace recon::trace {
namespace {

// Readings nearer than that say more of the network than of drift.
constexpr int64_t kApartMin = 1'000'000'000;
// Clocks that are steered run wrong by half a thousandth at most (NTP's bound on what it corrects); what
// looks like more is the network's doing.
constexpr double kDriftMax = 5e-4;

struct Offset {
  int64_t at_ns = 0;
  int64_t ahead_ns = 0;
  int64_t error_ns = 0;
};

// Without the sum of two clock readings, which might not fit.
Offset OffsetOf(const ClockReading& reading) {
  const int64_t there = reading.received - reading.asked;
  const int64_t back = reading.sent - reading.answered;
  const int64_t round_trip = (reading.answered - reading.asked) - (reading.sent - reading.received);
  return {reading.asked + (reading.answered - reading.asked) / 2, back + (there - back) / 2,
          (round_trip + 1) / 2};
}

bool MakesSense(const ClockReading& reading) {
  return reading.answered >= reading.asked && reading.sent >= reading.received &&
         reading.answered - reading.asked >= reading.sent - reading.received;
}

}  // namespace

std::optional<ClockMap> AlignClocks(const std::vector<ClockReading>& readings) {
  std::vector<Offset> offsets;
  for (const ClockReading& reading : readings) {
    if (MakesSense(reading)) offsets.push_back(OffsetOf(reading));
  }
  if (offsets.empty()) return std::nullopt;
  const auto [first, last] = std::minmax_element(
      offsets.begin(), offsets.end(), [](const Offset& a, const Offset& b) { return a.at_ns < b.at_ns; });
  const int64_t middle = first->at_ns + (last->at_ns - first->at_ns) / 2;
  const int64_t length = last->at_ns - first->at_ns;
  const Offset *early = nullptr, *late = nullptr;
  for (const Offset& offset : offsets) {
    const Offset*& best = offset.at_ns <= middle ? early : late;
    if (best == nullptr || offset.error_ns < best->error_ns) best = &offset;
  }
  if (late != nullptr && late->at_ns - early->at_ns >= kApartMin) {
    const double apart = static_cast<double>(late->at_ns - early->at_ns);
    const double drift = static_cast<double>(late->ahead_ns - early->ahead_ns) / apart;
    if (std::abs(drift) <= kDriftMax) {
      // Beyond the two, what both are wrong by grows with the distance, which is `length - apart` at most.
      const int64_t error = std::max(early->error_ns, late->error_ns);
      const double grown = 2 * static_cast<double>(length) / apart - 1;
      return ClockMap{early->at_ns, early->ahead_ns, drift,
                      static_cast<int64_t>(static_cast<double>(error) * grown)};
    }
  }
  const Offset& best = late == nullptr || early->error_ns <= late->error_ns ? *early : *late;
  const auto drifted = static_cast<int64_t>(kDriftMax * static_cast<double>(length));
  return ClockMap{best.at_ns, best.ahead_ns, 0, best.error_ns + drifted};
}

}  // namespace recon::trace
