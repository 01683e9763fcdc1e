#pragma once

#include <cstdint>

#include "absl/types/span.h"

namespace recon {

// A worker's copy of the parameters, flat, as ParamLayout lays them out.
struct ParameterView {
  absl::Span<const float> values;
  // Changes whenever the values do, so that a device uploads them only then.
  uint64_t revision = 0;
};

}  // namespace recon
