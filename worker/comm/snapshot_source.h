#pragma once

#include <cstdint>
#include <string>

#include "absl/status/statusor.h"
#include "common/base/ids.h"
#include "common/tensor/param_layout.h"
#include "worker/comm/replica.h"

namespace recon {

// A snapshot of the state that the server has now, or had: what a registration says of the newest.
struct SnapshotOffer {
  std::string store;  // As OpenStore() takes it; empty if there is none.
  Generation generation;
  std::string state_root;      // In hexadecimal.
  uint64_t cluster_epoch = 0;  // Of the server that said so.
};

// Fills `replica` with the snapshot's parameters and their versions, each page checked against its hash; the
// bytes that were read. On several threads. What the server has changed since, it sends to whoever names
// those versions. FailedPrecondition if it is of another model; as the store's otherwise. The replica is as
// before then.
absl::StatusOr<uint64_t> ReadSnapshot(const SnapshotOffer& offer, const ParamLayout& layout,
                                      Replica* replica);

}  // namespace recon
