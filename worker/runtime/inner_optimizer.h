#pragma once

#include <cstdint>
#include <vector>

#include "absl/types/span.h"
#include "common/optim/apply_rules.h"
#include "common/tensor/param_layout.h"
#include "worker/model/model_backend.h"

namespace recon {

// Local SGD: parameters of the worker's own, which it trains for some batches and then pushes how far they
// have moved. With the mean over the workers that is Stich, "Local SGD Converges Fast and Communicates
// Little", ICLR 2019; with Nesterov's momentum over the means, Douillard et al., "DiLoCo", 2023.
//
// The optimizer's state stays with the worker from round to round; a replacement begins with none.
//
// Threads: one at a time.
class InnerOptimizer {
 public:
  // Zero parameters; Begin() first. `layout` must outlive this.
  InnerOptimizer(ApplyRules rules, const ParamLayout* layout);

  // A round begins at these (layout->params() elements, as everywhere here).
  void Begin(absl::Span<const float> parameters);
  // One update. `update` counts the batches of the whole job: the schedule goes by it, and so by what is
  // computed, not by who computes it.
  void Step(uint64_t update, absl::Span<const float> gradient);
  ParameterView view() const { return {parameters_, revision_}; }
  // What the server is to treat as a gradient: `begin` less the parameters that there are now.
  void MovedFrom(absl::Span<const float> begin, absl::Span<float> moved) const;

 private:
  const ApplyRules rules_;
  const ParamLayout* const layout_;
  std::vector<float> parameters_;
  std::vector<float> state1_, state2_;  // As StatePlanes() says.
  uint64_t revision_;
  uint64_t steps_ = 0;  // Of this process: Adam's bias correction goes by it.
};

}  // namespace recon
