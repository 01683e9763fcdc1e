#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "common/base/ids.h"
#include "common/tensor/page.h"
#include "proto/manifest.pb.h"

namespace recon {

// A shard has one page at most, 256 KiB of FP32. It is what a synchronous step closes at a time: the smaller,
// the sooner parameters flow back.
inline constexpr uint32_t kShardPagesMax = 1;
inline constexpr uint32_t kShardParamsMax = kShardPagesMax * kPageParams;

// The group of what workers keep to themselves between two uploads, where the server has no optimizer
// (`mean`): their parameters and the state of their optimizers. No push has it.
inline constexpr char kStateGroup[] = "state";

struct TensorPlacement {
  std::string name;
  std::vector<uint64_t> shape;
  uint32_t group = 0;
  uint64_t offset = 0;  // In the flat parameter space.
  uint64_t size = 0;    // Number of parameters.
};

struct ShardPlacement {
  uint32_t group = 0;
  uint64_t offset = 0;
  uint32_t size = 0;

  uint32_t pages() const { return (size + kPageParams - 1) / kPageParams; }
  // Parameters in page `page` of the shard: kPageParams but for the last.
  uint32_t PageSize(uint32_t page) const {
    const uint32_t begin = page * kPageParams;
    return size - begin < kPageParams ? size - begin : kPageParams;
  }
};

// How a model's tensors lie in the flat parameter space: groups in the order of their first tensor,
// tensors of a group one after the other, each group cut into shards. Every process computes it from
// the model alone, so that shard numbers mean the same everywhere. Immutable; thread-safe.
class ParamLayout {
 public:
  // InvalidArgument (with the tensor's name) for an empty model, a duplicate or overlong name, a dimension of
  // 0, more parameters, tensors or dimensions than limits.h allows, a group of which some tensors are
  // averaged and others not, an unknown dtype, or an alias of no tensor.
  static absl::StatusOr<ParamLayout> Create(const ModelSpec& model);

  const ModelSpec& model() const { return model_; }
  uint64_t params() const { return params_; }
  // In the order of the model.
  const std::vector<TensorPlacement>& tensors() const { return tensors_; }
  const std::vector<ShardPlacement>& shards() const { return shards_; }
  const std::vector<std::string>& groups() const { return groups_; }
  // Whether a group's tensors are TensorSpec.averaged.
  bool averaged(uint32_t group) const { return averaged_[group]; }
  const ShardPlacement& shard(ShardId id) const { return shards_[id.value()]; }
  uint32_t shard_count() const { return static_cast<uint32_t>(shards_.size()); }

 private:
  ModelSpec model_;
  uint64_t params_ = 0;
  std::vector<TensorPlacement> tensors_;
  std::vector<ShardPlacement> shards_;
  std::vector<std::string> groups_;
  std::vector<bool> averaged_;  // By group.
};

// Whether a shard is of the group `state`.
inline bool HoldsState(const ParamLayout& layout, uint32_t shard) {
  return layout.groups()[layout.shards()[shard].group] == kStateGroup;
}

// What makes `b` another model than `a`: the first difference in names, shapes or groups, as a
// sentence. Empty if they are the same.
std::string ModelDifference(const ModelSpec& a, const ModelSpec& b);

}  // namespace recon
