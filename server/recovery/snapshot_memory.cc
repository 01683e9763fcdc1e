#include "server/recovery/snapshot_memory.h"

#include <algorithm>

#include "common/base/log.h"
#include "common/base/memory_limit.h"

namespace recon {

namespace {

// What a server takes beside state and frames.
constexpr uint64_t kOwnBytes = uint64_t{150} << 20;
// Less would have pushes wait for all of the snapshot.
constexpr uint64_t kKeptPagesMin = 64;

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
  const auto wanted = static_cast<uint64_t>(share * static_cast<double>(pages));
  const uint64_t kept = std::min(wanted, std::max(cut.memory_left / 2 / kPageBytes, kKeptPagesMin));
  if (kept >= pages) return;
  // Pages that are all zeros take no memory yet; the state has a right to it all the same.
  LimitPages(std::max(before_.pages, pages) + cut.pages_of_versions + kept);
}

SnapshotMemory::~SnapshotMemory() {
  LimitPages(UINT64_MAX);
  const uint64_t waited = GetPageUse().waits - before_.waits;
  if (waited == 0) return;
  LogWarn(
      "pushes waited {} times for pages that the snapshot kept: --snapshot-memory, and the memory there is, "
      "say how many it may",
      waited);
}

}  // namespace recon
