#pragma once

#include <cstdint>
#include <optional>
#include <set>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "common/base/ids.h"

namespace recon {

// The state that workers step by themselves (the optimizer `mean`): which of a server's shards hold it, from
// whom an upload of it is taken, and which of its parts have come. An upload is of the state before one step,
// and counts when all of it is there.
//
// Pure; not thread-safe.
class StateUpload {
 public:
  void SetShards(std::vector<uint32_t> shards) { shards_ = std::set<uint32_t>(shards.begin(), shards.end()); }
  const std::set<uint32_t>& shards() const { return shards_; }

  // Uploads of this worker are taken from now on. What another one has sent in part is dropped.
  void AskOf(WorkerId worker);
  // FailedPrecondition if the worker is not asked; InvalidArgument for a shard that holds no state.
  absl::Status Check(WorkerId worker, absl::Span<const uint32_t> shards) const;
  // These parts have come of the state before `step`. True if the upload is whole now: nothing more is taken
  // until the next question.
  bool Came(uint64_t step, absl::Span<const uint32_t> shards);

 private:
  std::set<uint32_t> shards_;
  std::optional<WorkerId> sender_;
  uint64_t step_ = 0;           // Of the upload that is coming.
  std::set<uint32_t> missing_;  // Of it; empty: none has begun.
};

}  // namespace recon
