#include "common/snapshot/tensor_reader.h"

#include <algorithm>
#include <utility>

#include "common/base/status_macros.h"

namespace recon {

TensorReader::TensorReader(ObjectStore* store, Manifest manifest, ParamLayout layout)
    : reader_(store), manifest_(std::move(manifest)), layout_(std::move(layout)) {
  uint64_t pages = 0;
  for (const ShardPlacement& shard : layout_.shards()) {
    first_pages_.push_back(pages);
    pages += shard.pages();
  }
}

absl::StatusOr<TensorReader> TensorReader::Open(ObjectStore* store, Generation generation) {
  RECON_ASSIGN_OR_RETURN(Manifest manifest, SnapshotReader(store).ReadManifest(generation));
  RECON_ASSIGN_OR_RETURN(ParamLayout layout, ParamLayout::Create(manifest.model()));
  return TensorReader(store, std::move(manifest), std::move(layout));
}

absl::Status TensorReader::Read(const TensorPlacement& tensor, int role, Sink sink) {
  const auto& shards = layout_.shards();
  auto shard = std::upper_bound(shards.begin(), shards.end(), tensor.offset,
                                [](uint64_t offset, const ShardPlacement& s) { return offset < s.offset; });
  --shard;  // The last that begins at or before the tensor.
  const uint64_t end = tensor.offset + tensor.size;
  for (uint64_t at = tensor.offset; at < end; ++shard) {
    const auto number = static_cast<size_t>(shard - shards.begin());
    const int chunk = static_cast<int>(number) * roles() + role;
    if (chunk != loaded_chunk_) {
      loaded_chunk_ = -1;
      RECON_ASSIGN_OR_RETURN(pages_, reader_.ReadChunk(manifest_, chunk));
      loaded_chunk_ = chunk;
    }
    const uint64_t shard_end = std::min<uint64_t>(end, shard->offset + shard->size);
    while (at < shard_end) {
      const uint64_t in_shard = at - shard->offset;
      const uint64_t in_page = in_shard % kPageParams;
      const uint64_t count = std::min<uint64_t>(shard_end - at, kPageParams - in_page);
      const uint64_t page = in_shard / kPageParams;
      RECON_RETURN_IF_ERROR(sink(first_pages_[number] + page, {pages_[page].data() + in_page, count}));
      at += count;
    }
  }
  return absl::OkStatus();
}

}  // namespace recon
