#pragma once

#include <algorithm>
#include <vector>

namespace recon {

// Of at least one value; the upper one of the two in the middle.
inline double Median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return values[values.size() / 2];
}

}  // namespace recon
