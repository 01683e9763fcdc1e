#pragma once

#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "common/codec/frame.h"
#include "common/tensor/param_layout.h"

namespace recon {

// The mean of one synchronous step, as it comes back from the servers in parts: of a job whose workers have
// the optimizer. Values of shards that no push has stay 0.
//
// Threads: the training thread.
class StepMean {
 public:
  // `layout` must outlive this.
  explicit StepMean(const ParamLayout* layout);

  // What comes from now on is of `step`.
  void Begin(uint64_t step);
  uint64_t step() const { return step_; }
  // Takes a reply to a push of that step, or to a question for its mean. InvalidArgument if it does not fit
  // the layout.
  absl::Status Take(const Frame& reply);
  // All shards that pushes have are there; some step's mean was asked for that is not closed yet; or one that
  // no server keeps any more.
  bool complete() const { return missing_ == 0; }
  bool open() const { return open_; }
  bool gone() const { return gone_; }
  // How many pushes it is the mean of; 0: no server knows any more.
  uint32_t pushes() const { return pushes_; }
  // In the order of the layout.
  absl::Span<const float> values() const { return values_; }

 private:
  absl::Status TakeValues(const PartHeader& part, const ByteChain& payload);

  const ParamLayout* const layout_;
  std::vector<bool> pushed_;  // By shard: pushes have it.
  uint32_t pushed_count_ = 0;
  std::vector<float> values_;  // Empty until a step begins.
  std::vector<bool> here_;
  uint32_t missing_ = 0;
  uint64_t step_ = 0;
  uint32_t pushes_ = 0;
  bool open_ = false;
  bool gone_ = false;
};

}  // namespace recon
