#pragma once

#include <cstdint>
#include <vector>

#include "absl/types/span.h"
#include "common/optim/apply_rules.h"
#include "common/tensor/param_layout.h"
#include "common/tensor/parameter_view.h"

namespace recon {

// Local SGD: parameters of the worker's own, which it trains for some batches and then pushes how far they
// have moved. With the mean over the workers that is Stich, "Local SGD Converges Fast and Communicates
// Little", ICLR 2019; with Nesterov's momentum over the means, Douillard et al., "DiLoCo", 2023.
//
// Training may go on while a push is under way: what it moves meanwhile is kept when the server's parameters
// come, and is of the next push.
//
// The optimizer's state stays with the worker from round to round; a replacement begins with none.
//
// Threads: one at a time.
class InnerOptimizer {
 public:
  // Zero parameters; Begin() first. `layout` must outlive this.
  InnerOptimizer(ApplyRules rules, const ParamLayout* layout);

  // Begins at the server's parameters (layout->params() elements, as everywhere here) of these versions, one
  // a shard, of that cluster epoch; what had moved and was not pushed is dropped.
  void Begin(absl::Span<const float> parameters, const std::vector<uint64_t>& versions, uint64_t epoch);
  // Takes them where they are others than before; what has moved and was not pushed stays.
  void Follow(absl::Span<const float> parameters, const std::vector<uint64_t>& versions, uint64_t epoch);
  // One update, by the mean over so many samples. `update` counts the batches of the whole job: the schedule
  // goes by it, and so by what is computed, not by who computes it. `learning_rates`: one for each group, in
  // place of the rules'; empty: theirs.
  void Step(uint64_t update, absl::Span<const float> gradient, uint64_t samples,
            absl::Span<const double> learning_rates = {});
  // One update that was made elsewhere: the parameters are these now.
  void MoveTo(absl::Span<const float> parameters, uint64_t samples);
  // Whether there were steps since some shard was taken.
  bool holds() const;
  ParameterView view() const { return {parameters_, revision_}; }
  // What the server is to treat as a gradient, of the shards that are `due` (empty: all): where they were
  // when it was taken last, or the server's parameters came, less where they are now. Of others 0. Returns
  // the samples of each shard's steps since it was taken; 0 of others.
  std::vector<uint32_t> TakeMovement(const std::vector<bool>& due, absl::Span<float> moved);

 private:
  const ApplyRules rules_;
  const ParamLayout* const layout_;
  std::vector<float> parameters_;
  std::vector<float> taken_;        // What movement counts from.
  std::vector<uint64_t> samples_;   // Of each shard's steps since.
  std::vector<uint64_t> versions_;  // Of the server's parameters that came last.
  uint64_t epoch_ = 0;
  std::vector<float> state1_, state2_;  // As StatePlanes() says.
  uint64_t revision_;
  uint64_t steps_ = 0;  // Of this process: Adam's bias correction goes by it.
};

}  // namespace recon
