#pragma once

#include <cstdint>
#include <vector>

#include "absl/status/statusor.h"
#include "common/tensor/param_layout.h"
#include "proto/control.pb.h"

namespace recon {

// Which shards a push has: all, those of the groups whose period it ends (JobConfig.sync_periods; layered
// synchronisation), or the fragment of local steps whose turn it is (Douillard et al., "Streaming DiLoCo with
// overlapping communication", 2025, section 2.2). It goes by the step's number: what synchronous workers push
// in one step, they push together.
//
// Immutable; thread-safe.
class PushSchedule {
 public:
  // Every push has all.
  PushSchedule() = default;
  // InvalidArgument if some push would have none.
  static absl::StatusOr<PushSchedule> Create(const JobConfig& job, const ParamLayout& layout);

  // Some pushes have not all shards.
  bool partial() const { return !periods_.empty(); }
  // One element a shard; empty: all.
  std::vector<bool> Due(uint64_t step) const;
  // Batches between two pushes, with local steps. At least 1.
  uint32_t steps() const { return steps_; }
  // Of local steps: pushes one after the other have none of each other's shards. At least 1.
  uint32_t fragments() const { return fragments_; }

 private:
  // Of each shard, the pushes whose number leaves `phase` when divided by its period; empty: all.
  std::vector<uint32_t> periods_, phases_;
  uint32_t steps_ = 1;
  uint32_t fragments_ = 1;
};

}  // namespace recon
