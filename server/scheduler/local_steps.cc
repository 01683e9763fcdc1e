#include "server/scheduler/local_steps.h"

#include <algorithm>
#include <cmath>

#include "common/base/limits.h"

namespace recon {

uint32_t LocalStepsBySpeed(uint32_t steps, double batch_seconds, double fastest_seconds) {
  // Workers say what they like, infinity and no number among it.
  if (!(fastest_seconds > 0) || !(batch_seconds > fastest_seconds)) return steps;
  const double share = std::round(steps * (fastest_seconds / batch_seconds));
  return share >= 1 ? static_cast<uint32_t>(share) : 1;
}

uint32_t BatchesOfStep(uint64_t batches, size_t workers, size_t rank) {
  const uint64_t share = batches / workers + (rank < batches % workers ? 1 : 0);
  return static_cast<uint32_t>(std::clamp<uint64_t>(share, 1, limits::kLocalStepsMax));
}

}  // namespace recon
