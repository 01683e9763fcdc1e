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
  explicit GradientSum(const ParamLayout* layout)
      : layout_(layout),
        samples_(layout->shard_count()),
        versions_(layout->shard_count()),
        epochs_(layout->shard_count()) {}

  // A mean over so many samples, layout->params() values, computed from these versions of the shards, as the
  // server counts them in that cluster epoch.
  void Add(absl::Span<const float> gradient, uint64_t samples, const std::vector<uint64_t>& versions,
           uint64_t epoch);
  // Of each shard that was taken; others have 0 samples.
  struct Taken {
    std::vector<uint32_t> samples;
    std::vector<uint64_t> versions;  // The oldest; 0 if it is of an epoch before.
  };
  // The means of the shards that are `due` (empty: all), which begin anew; of the others 0.
  Taken Take(const std::vector<bool>& due, uint64_t epoch, absl::Span<float> mean);
  // Whether some shard has what was not taken.
  bool holds() const;
  // Drops what was not taken.
  void Clear();

 private:
  const ParamLayout* const layout_;
  std::vector<float> sum_;  // Each gradient times its samples.
  // Of each shard.
  std::vector<uint64_t> samples_;
  std::vector<uint64_t> versions_, epochs_;  // Of the first gradient.
};

}  // namespace recon
