#pragma once

#include <cstdint>
#include <map>
#include <vector>

#include "common/base/ids.h"
#include "proto/manifest.pb.h"

namespace recon {

// Which pushes one shard has taken: a push id (worker, incarnation, step) is taken at most once, however
// often it is sent and in whatever order the steps of a worker's window arrive. Lane only.
//
// Per worker it keeps the newest incarnation, its highest step and the 64 steps up to it; a step further
// back is forgotten, and not taken: no worker has that many in flight (limits::kPipelineDepthMax).
class PushLedger {
 public:
  // True the first time for a push id, false for a duplicate.
  bool Take(WorkerId worker, Incarnation incarnation, uint64_t step);
  // It is further back than the ledger knows of: it may have been taken, or not.
  bool Forgotten(WorkerId worker, Incarnation incarnation, uint64_t step) const;
  // Whether Take() would return false.
  bool Taken(WorkerId worker, Incarnation incarnation, uint64_t step) const;

  std::vector<LedgerEntry> Entries() const;
  void Restore(const std::vector<LedgerEntry>& entries);

 private:
  struct Record {
    Incarnation incarnation;
    uint64_t last_step = 0;
    uint64_t window = 0;  // Bit i: step last_step - i was taken.
  };

  std::map<WorkerId, Record> workers_;
};

}  // namespace recon
