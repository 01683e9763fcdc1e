#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "common/base/ids.h"
#include "common/storage/file_system.h"

namespace recon {

// The gradient of one push as the log has it, on the shards of one server: its L2 norm before any clipping.
struct PushNorm {
  WorkerId worker;
  Incarnation incarnation;
  uint64_t step = 0;
  double norm = 0;
};

// Which pushes a diverged job has to look at.
struct LargestPushes {
  std::vector<PushNorm> largest;  // The largest first.
  size_t pushes = 0;              // Of all of them,
  double median_norm = 0;         // and the median of their norms.
};

// Reads the log's records from `first` to `last` and says which `count` pushes have the largest gradients.
// What follows a damaged record is not seen. Any thread; it blocks on the disk, and decodes every
// gradient.
absl::StatusOr<LargestPushes> FindLargestPushes(FileSystem* files, const std::string& directory,
                                                uint64_t first, uint64_t last, size_t count);

}  // namespace recon
