#pragma once

#include <cstdint>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/types/span.h"
#include "common/base/mutex.h"
#include "common/tensor/param_layout.h"

namespace recon {

// Which shards of a gradient are there, while the rest of it is being computed: those who compute say what
// they have written, one thread takes shards to encode.
//
// Threads: thread-safe.
class GradientProgress {
 public:
  // `layout` must outlive it.
  explicit GradientProgress(const ParamLayout* layout);

  // The gradient's values [offset, offset + size) are written and stay as they are. Ranges do not overlap.
  void Filled(uint64_t offset, uint64_t size);
  // So is all the rest.
  void Complete();
  // Nothing more comes: the gradient is not to be used.
  void Abandon();

  // Sets what is not filled yet to 0. `gradient` has the layout's params() values.
  void ZeroRest(absl::Span<float> gradient) const;

  enum class Next { kSome, kLast, kAbandoned };
  // Waits for shards of `params` parameters together that were not taken before, or for all that are left
  // (kLast): those are `due`, one element a shard.
  Next Take(uint64_t params, std::vector<bool>* due);

 private:
  const ParamLayout* const layout_;

  mutable Mutex mu_;
  std::vector<uint32_t> missing_ ABSL_GUARDED_BY(mu_);  // Of each shard, so many values.
  std::vector<std::pair<uint64_t, uint64_t>> filled_ ABSL_GUARDED_BY(mu_);
  std::vector<uint32_t> ready_ ABSL_GUARDED_BY(mu_);  // Shards, not taken yet.
  uint64_t ready_params_ ABSL_GUARDED_BY(mu_) = 0;
  bool complete_ ABSL_GUARDED_BY(mu_) = false;
  bool abandoned_ ABSL_GUARDED_BY(mu_) = false;
};

}  // namespace recon
