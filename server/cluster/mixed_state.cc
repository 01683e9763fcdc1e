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

absl::Status CheckOneState(const ParamLayout& layout, absl::Span<const Manifest> parts) {
  std::optional<uint64_t> version;
  for (const Manifest& part : parts) {
    for (const ShardEntry& shard : part.shards()) {
      if (!HoldsState(layout, shard.shard())) continue;
      if (version.value_or(shard.version()) != shard.version()) {
        return absl::UnavailableError(
            "no snapshot: the servers' parts are of two states of the workers, since one of them has just "
            "come back");
      }
      version = shard.version();
    }
  }
  return absl::OkStatus();
}

}  // namespace recon
