#include "server/snapshot_memory.h"

#include "common/base/log.h"

namespace recon {

SnapshotMemory::SnapshotMemory(double share, const StateCut& cut) : before_(GetPageUse()) {
  if (share >= 1) return;
  uint64_t pages = 0;
  for (const ShardCut& shard : cut.shards) {
    for (const std::vector<PageRef>& role : shard.pages) pages += role.size();
  }
  LimitPages(before_.pages + cut.pages_of_versions +
             static_cast<uint64_t>(share * static_cast<double>(pages)));
}

SnapshotMemory::~SnapshotMemory() {
  LimitPages(UINT64_MAX);
  const uint64_t waited = GetPageUse().waits - before_.waits;
  if (waited == 0) return;
  spdlog::warn(
      "pushes waited {} times for pages that the snapshot kept: --snapshot-memory sets how many it may",
      waited);
}

}  // namespace recon
