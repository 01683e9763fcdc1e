#pragma once

#include <cstdint>
#include <vector>

#include "absl/types/span.h"
#include "common/tensor/param_layout.h"

namespace recon {

// Gradients of several batches, until they are pushed: their means over the samples, shard by shard, since
// shards may be pushed at different times.
//
// Threads: one at a time.
class GradientSum {
 public:
  // `layout` must outlive this. Its memory, layout->params() floats, is taken with the first Add().
  explicit GradientSum(const ParamLayout* layout) : layout_(layout), samples_(layout->shard_count()) {}

  // A mean over so many samples, layout->params() values.
  void Add(absl::Span<const float> gradient, uint64_t samples);
  // The means of the shards that are `due` (empty: all), which begin anew; of the others 0.
  void Take(const std::vector<bool>& due, absl::Span<float> mean);
  // Whether some shard has what was not taken.
  bool holds() const;
  // Drops what was not taken.
  void Clear();

 private:
  const ParamLayout* const layout_;
  std::vector<float> sum_;         // Each gradient times its samples.
  std::vector<uint64_t> samples_;  // Of each shard.
};

}  // namespace recon
