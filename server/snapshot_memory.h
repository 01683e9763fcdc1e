#pragma once

#include "common/tensor/page.h"
#include "server/param_server.h"

namespace recon {

// Bounds the memory of a snapshot while it is written: pages that it keeps and pushes change. Writing a cut
// needs no lane and no page, so that whoever waits for one gets it.
class SnapshotMemory {
 public:
  // So much of the cut's pages may be kept twice; 1: all.
  SnapshotMemory(double share, const StateCut& cut);
  ~SnapshotMemory();
  SnapshotMemory(const SnapshotMemory&) = delete;
  SnapshotMemory& operator=(const SnapshotMemory&) = delete;

 private:
  const PageUse before_;
};

}  // namespace recon
