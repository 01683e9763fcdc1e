#pragma once

#include <cstdint>
#include <string>

#include "absl/status/statusor.h"
#include "nlohmann/json.hpp"

namespace recon {

struct DurabilityOptions {
  int rounds = 5;                      // Medians are over these.
  uint64_t bytes = uint64_t{1} << 30;  // Of state, at least.
  std::string state;                   // Where the state of real training is kept; made when it is not there.
  std::string work = "/var/tmp";       // A directory on the disk to measure.
  // "all", "snapshots" (saving and restoring), "pushes" (while a snapshot is written) or "log" (beside plain
  // appends).
  std::string part = "all";
};

// Snapshots and the push log beside torch.save, torch.load and plain appends, in one run. Needs python3 with
// torch.
absl::StatusOr<nlohmann::ordered_json> RunDurability(const DurabilityOptions& options);

// The newest snapshot of a directory into fresh memory, verified, when it is not in the page cache, and then
// the push log `log` unless that is empty: seconds. In a process of its own, as a server does it when it
// starts.
absl::StatusOr<nlohmann::ordered_json> RunRestore(const std::string& directory, const std::string& log);

}  // namespace recon
