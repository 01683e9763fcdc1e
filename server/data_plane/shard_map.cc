#include "server/data_plane/shard_map.h"

#include <utility>

#include "common/tensor/shard_assignment.h"

namespace recon {

ShardMap::ShardMap(std::shared_ptr<const ParamLayout> layout, uint32_t server, uint32_t servers)
    : layout_(std::move(layout)),
      server_(server),
      server_of_(AssignShards(*layout_, servers)),
      owned_(of(server)) {
  for (const uint32_t shard : owned_) owned_pages_ += layout_->shards()[shard].pages();
}

std::vector<uint32_t> ShardMap::of(uint32_t server) const {
  std::vector<uint32_t> shards;
  for (uint32_t shard = 0; shard < size(); ++shard) {
    if (server_of_[shard] == server) shards.push_back(shard);
  }
  return shards;
}

std::vector<uint32_t> ShardMap::of_state() const {
  std::vector<uint32_t> found;
  for (const uint32_t shard : owned_) {
    if (HoldsState(*layout_, shard)) found.push_back(shard);
  }
  return found;
}

}  // namespace recon
