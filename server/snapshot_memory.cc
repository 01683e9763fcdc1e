#include "server/snapshot_memory.h"

#include <algorithm>

#include "common/base/log.h"
#include "common/base/memory_limit.h"

namespace recon {

namespace {

// What a server takes beside state and frames.
constexpr uint64_t kOwnBytes = uint64_t{150} << 20;

}  // namespace

uint64_t ServerMemory() {
  const uint64_t limit = MemoryLimit();
  return limit - std::min(kOwnBytes, limit / 2);
}

SnapshotMemory::SnapshotMemory(double share, const StateCut& cut) : before_(GetPageUse()) {
  uint64_t pages = 0;
  for (const ShardCut& shard : cut.shards) {
    for (const std::vector<PageRef>& role : shard.pages) pages += role.size();
  }
  const uint64_t used = before_.pages + cut.pages_of_versions;
  const uint64_t there = ServerMemory() / kPageBytes;
  const uint64_t room = there > used ? (there - used) / 2 : 0;
  const uint64_t kept = std::min(room, static_cast<uint64_t>(share * static_cast<double>(pages)));
  if (kept < pages) LimitPages(used + kept);
}

SnapshotMemory::~SnapshotMemory() {
  LimitPages(UINT64_MAX);
  const uint64_t waited = GetPageUse().waits - before_.waits;
  if (waited == 0) return;
  spdlog::warn(
      "pushes waited {} times for pages that the snapshot kept: --snapshot-memory, and the memory there is, "
      "say how many it may",
      waited);
}

}  // namespace recon
