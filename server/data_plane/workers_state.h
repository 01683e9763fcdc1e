#pragma once

#include <cstdint>
#include <functional>

#include "absl/status/status.h"
#include "common/base/ids.h"
#include "common/snapshot/snapshot_reader.h"

namespace recon {

// The state of the workers that a server keeps, or its part of it, where workers have the optimizer (`mean`).
// A state has a number, its version: that of the upload that brought it, and all servers have one of the same
// number, or are about to. Whoever decides says so to all of them.
//
// Threads: thread-safe in a ParamServer.
class WorkersState {
 public:
  virtual ~WorkersState() = default;
  // Only this upload is taken from now on, and staged; `staged` is called once, when all that this server has
  // of it is there, with the step before which it is.
  virtual void AwaitState(WorkerId worker, uint64_t upload, std::function<void(uint64_t step)> staged) = 0;
  // The upload takes the place of the state that there is; the head tells the others, and it has one place
  // among the cuts of all servers. FailedPrecondition if it is not staged.
  virtual absl::Status CommitState(uint64_t upload) = 0;
  // A snapshot's state takes the place of what there is, under the number of a new upload. No upload is taken
  // until the next question. Blocks.
  virtual absl::Status RestoreState(const SnapshotReader& reader, const Manifest& manifest,
                                    uint64_t upload) = 0;
  // 0: the initial values.
  virtual uint64_t state_version() const = 0;
};

}  // namespace recon
