#pragma once

#include <cstdint>
#include <optional>
#include <set>
#include <vector>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "common/base/ids.h"

namespace recon {

// The state that workers step by themselves (the optimizer `mean`): which of a server's shards hold it, from
// whom an upload of it is taken, and which of its parts have come. An upload has a number, which no other one
// of the job has, and is of the state before one step. Its parts are staged; they count when all of them are
// there, on all servers, and it is committed.
//
// Pure; not thread-safe.
class StateUpload {
 public:
  void SetShards(const std::vector<uint32_t>& shards) { shards_.insert(shards.begin(), shards.end()); }
  const std::set<uint32_t>& shards() const { return shards_; }

  // Only this upload is taken from now on. What has come of another one is dropped, unless it is being
  // committed.
  void AskOf(WorkerId worker, uint64_t upload);
  // No upload is taken until the next question.
  void Forget() { sender_.reset(); }
  // Whether these parts may come: FailedPrecondition if the upload is not asked for, or no longer;
  // Unavailable if it may be soon; AlreadyExists if it is whole without them; InvalidArgument for a shard
  // that holds no state.
  absl::Status Check(WorkerId worker, uint64_t upload, uint64_t step,
                     absl::Span<const uint32_t> shards) const;
  // Such parts are on their way to the shards.
  void Begin(uint64_t step) { step_ = step; }
  // They are staged. True if the upload is whole now.
  bool Came(uint64_t upload, absl::Span<const uint32_t> shards);

  // The upload is to take the place of what the shards have: none is taken from now on, and no other one
  // before EndCommit(). FailedPrecondition if it is not whole.
  absl::Status BeginCommit(uint64_t upload);
  void EndCommit() { commits_ = false; }

 private:
  bool whole() const { return missing_.empty(); }

  std::set<uint32_t> shards_;
  std::optional<WorkerId> sender_;
  uint64_t upload_ = 0;
  std::optional<uint64_t> step_;  // Of the upload; none: nothing of it has come.
  std::set<uint32_t> missing_;    // Of it.
  bool commits_ = false;
};

}  // namespace recon
