#pragma once

#include "common/tensor/page.h"
#include "server/data_plane/param_server.h"

namespace recon {

// What the process may use beside its code, its threads and the control state: MemoryLimit(), less some.
uint64_t ServerMemory();

// Bounds the memory of a snapshot while it is written: pages that it keeps and pushes change. Writing a cut
// needs no lane and no page, so that whoever waits for one gets it.
class SnapshotMemory {
 public:
  // So much of the cut's pages may be kept twice, 1: all; but in no more than half of what is left:
  // the other half is ParamServer's, for frames.
  SnapshotMemory(double share, const StateCut& cut);
  ~SnapshotMemory();
  SnapshotMemory(const SnapshotMemory&) = delete;
  SnapshotMemory& operator=(const SnapshotMemory&) = delete;

 private:
  const PageUse before_;
};

}  // namespace recon
