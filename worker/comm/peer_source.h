#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "common/rpc/credentials.h"
#include "common/tensor/param_layout.h"
#include "worker/comm/replica.h"

namespace recon {

// Workers that hand out their parameters, by the first registration.
struct PeerOffer {
  std::vector<std::string> addresses;  // host:port.
  std::string token;                   // Shown to them.
};

struct PeersRead {
  uint64_t bytes = 0;  // Of parameters.
  size_t peers = 0;    // That gave some.
};

// Fills `replica` with the parameters that other workers have (ReplicaServer), unchecked: some shards from
// each of them, all at once. What one of them does not give, or not soon, is not filled in,
// and the log says so. Blocks. Unavailable if nothing came; Cancelled soon after `stopped` says so.
absl::StatusOr<PeersRead> ReadPeers(const PeerOffer& peers, const TlsFlags& tls, const ParamLayout& layout,
                                    const std::function<bool()>& stopped, Replica* replica);

}  // namespace recon
