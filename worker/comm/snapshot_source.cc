#include "worker/comm/snapshot_source.h"

#include <algorithm>
#include <atomic>
#include <memory>
#include <numeric>
#include <system_error>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/base/hash.h"
#include "common/base/machine_limits.h"
#include "common/base/mutex.h"
#include "common/base/status_macros.h"
#include "common/snapshot/manifest.h"
#include "common/snapshot/reader_lease.h"
#include "common/snapshot/snapshot_reader.h"
#include "common/storage/store_url.h"

namespace recon {
namespace {

constexpr unsigned kThreadsMax = 8;
// The server has everything, too.
constexpr absl::Duration kPatience = absl::Seconds(2);

uint64_t StoredBytes(const ChunkEntry& chunk) {
  return std::accumulate(chunk.stored_bytes().begin(), chunk.stored_bytes().end(), uint64_t{0});
}

}  // namespace

absl::StatusOr<uint64_t> ReadSnapshot(const SnapshotOffer& offer, const ParamLayout& layout,
                                      Replica* replica) {
  RECON_ASSIGN_OR_RETURN(const auto store, OpenStore(offer.store, /*writer=*/false, kPatience));
  RECON_ASSIGN_OR_RETURN(const auto lease, ReaderLease::TakeIfWritable(store.get(), offer.generation));
  const SnapshotReader reader(store.get());
  RECON_ASSIGN_OR_RETURN(const Manifest manifest, reader.ReadManifest(offer.generation));
  if (const std::string difference = ModelDifference(layout.model(), manifest.model()); !difference.empty()) {
    return absl::FailedPreconditionError(
        absl::StrCat("snapshot ", offer.generation.value(), " is of another model: ", difference));
  }
  if (ToHex(manifest.state_root()) != offer.state_root) {
    return absl::FailedPreconditionError(absl::StrCat("snapshot ", offer.generation.value(), " of ",
                                                      offer.store, " is not the server's: its state root is ",
                                                      ToHex(manifest.state_root()), ", the server's ",
                                                      offer.state_root));
  }
  const int roles = static_cast<int>(manifest.state_planes()) + 1;
  std::vector<std::vector<PageRef>> shards(layout.shard_count());
  std::atomic<uint32_t> next{0};
  std::atomic<uint64_t> bytes{0};
  Mutex mu;
  absl::Status failure;
  const auto read = [&] {
    for (uint32_t shard = next++; shard < shards.size(); shard = next++) {
      const int chunk = static_cast<int>(shard) * roles;
      absl::StatusOr<std::vector<PageRef>> pages = reader.ReadChunk(manifest, chunk);
      if (!pages.ok()) {
        MutexLock lock(&mu);
        failure.Update(pages.status());
        next = static_cast<uint32_t>(shards.size());
        return;
      }
      shards[shard] = *std::move(pages);
      bytes += StoredBytes(manifest.chunks(chunk));
    }
  };
  std::vector<std::thread> threads;
  try {
    const unsigned others = std::min(static_cast<unsigned>(UsableCores()), kThreadsMax);
    while (threads.size() + 1 < others) threads.emplace_back(read);
  } catch (const std::system_error&) {  // No more threads: those there are do all.
  }
  read();
  for (std::thread& thread : threads) thread.join();
  RECON_RETURN_IF_ERROR(failure);
  for (const ShardEntry& entry : manifest.shards()) {
    replica->TakeShard(entry.shard(), entry.version(), offer.cluster_epoch, shards[entry.shard()]);
  }
  return bytes.load();
}

}  // namespace recon
