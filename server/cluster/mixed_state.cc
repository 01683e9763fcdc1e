#include "server/cluster/mixed_state.h"

#include <algorithm>

#include "common/snapshot/manifest.h"

namespace recon {

std::optional<uint64_t> OldestOfLost(const std::vector<PlaceState>& servers) {
  std::optional<uint64_t> oldest;
  for (const PlaceState& server : servers) {
    if (!server.lost || server.generation == 0) continue;
    oldest = std::min(oldest.value_or(server.generation), server.generation);
  }
  return oldest;
}

std::vector<uint32_t> AheadOf(const Manifest& snapshot, const std::vector<PlaceState>& servers) {
  std::vector<uint32_t> ahead;
  for (const PlaceState& server : servers) {
    const bool has_more = server.sequence > ForServer(snapshot, server.server).sequence();
    if (server.generation > snapshot.generation() || has_more) ahead.push_back(server.server);
  }
  return ahead;
}

}  // namespace recon
