#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "common/tensor/param_layout.h"

namespace recon {

// The shards of a model, and which of them are on this server. Immutable.
class ShardMap {
 public:
  // Without a model: no shards.
  ShardMap() = default;
  // This is server `server` of `servers`; who has what says AssignShards().
  ShardMap(std::shared_ptr<const ParamLayout> layout, uint32_t server, uint32_t servers);

  // Null without a model.
  const std::shared_ptr<const ParamLayout>& layout() const { return layout_; }
  uint32_t server() const { return server_; }
  // Of the whole model.
  uint32_t size() const { return static_cast<uint32_t>(server_of_.size()); }
  uint32_t params_of(uint32_t shard) const { return layout_->shards()[shard].size; }
  uint32_t server_of(uint32_t shard) const { return server_of_[shard]; }
  bool has(uint32_t shard) const { return server_of_[shard] == server_; }
  // Those that are here, ascending; and those of any server.
  const std::vector<uint32_t>& owned() const { return owned_; }
  std::vector<uint32_t> of(uint32_t server) const;
  // Those here that hold workers' state (HoldsState()).
  std::vector<uint32_t> of_state() const;
  // Pages of one value per parameter, of the owned shards.
  uint64_t owned_pages() const { return owned_pages_; }

 private:
  std::shared_ptr<const ParamLayout> layout_;
  uint32_t server_ = 0;
  std::vector<uint32_t> server_of_;
  std::vector<uint32_t> owned_;
  uint64_t owned_pages_ = 0;
};

}  // namespace recon
