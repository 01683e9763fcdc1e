#include "common/tensor/shard_assignment.h"

#include <algorithm>

namespace recon {

std::vector<uint32_t> AssignShards(const ParamLayout& layout, uint32_t servers) {
  std::vector<uint64_t> sizes(servers);
  std::vector<uint32_t> server_of_shard;
  for (const ShardPlacement& shard : layout.shards()) {
    const auto least = std::min_element(sizes.begin(), sizes.end());
    server_of_shard.push_back(static_cast<uint32_t>(least - sizes.begin()));
    *least += shard.size;
  }
  return server_of_shard;
}

}  // namespace recon
