#pragma once

#include <algorithm>
#include <cstddef>
#include <vector>

namespace recon {

// Of at least one value; the upper one of the two in the middle.
inline double Median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return values[values.size() / 2];
}

// Of at least one value: that of which so much of them, rounded down, comes before it in their order.
inline double Percentile(std::vector<double> values, double fraction) {
  std::sort(values.begin(), values.end());
  const auto rank = static_cast<size_t>(fraction * static_cast<double>(values.size()));
  return values[std::min(values.size() - 1, rank)];
}

}  // namespace recon
