#include "worker/training/inner_optimizer.h"

#include <algorithm>
#include <atomic>
#include <cmath>
#include <utility>

#include "common/base/check.h"
#include "common/codec/select_kernels.h"
#include "common/optim/optimizer_kernels.h"

namespace recon {
namespace {

// Another one each time, whichever InnerOptimizer it is for, and none of a Replica's.
uint64_t NextRevision() {
  static std::atomic<uint64_t> next{uint64_t{1} << 63};
  return next++;
}

}  // namespace

InnerOptimizer::InnerOptimizer(ApplyRules rules, const ParamLayout* layout)
    : rules_(std::move(rules)),
      layout_(layout),
      parameters_(layout->params()),
      taken_(layout->params()),
      samples_(layout->shard_count()),
      revision_(NextRevision()) {
  const int planes = StatePlanes(rules_.optimizer.kind);
  if (planes > 0) state1_.resize(layout->params());
  if (planes > 1) state2_.resize(layout->params());
}

void InnerOptimizer::Begin(absl::Span<const float> parameters, const std::vector<uint64_t>& versions,
                           uint64_t epoch) {
  RECON_CHECK_EQ(parameters.size(), layout_->params());
  RECON_CHECK_EQ(versions.size(), layout_->shard_count());
  parameters_.assign(parameters.begin(), parameters.end());
  taken_ = parameters_;
  samples_.assign(layout_->shard_count(), 0);
  versions_ = versions;
  epoch_ = epoch;
  revision_ = NextRevision();
}

void InnerOptimizer::Follow(absl::Span<const float> parameters, const std::vector<uint64_t>& versions,
                            uint64_t epoch) {
  // A restarted server counts versions from its snapshot: the same numbers may name other values.
  const bool anew = epoch != epoch_ || versions_.size() != versions.size();
  for (uint32_t i = 0; i < layout_->shard_count(); ++i) {
    if (!anew && versions[i] == versions_[i]) continue;
    const ShardPlacement& shard = layout_->shards()[i];
    for (uint64_t at = shard.offset; at < shard.offset + shard.size; ++at) {
      parameters_[at] = parameters[at] + (parameters_[at] - taken_[at]);
      taken_[at] = parameters[at];
    }
  }
  versions_ = versions;
  epoch_ = epoch;
  revision_ = NextRevision();
}

void InnerOptimizer::Step(uint64_t update, absl::Span<const float> gradient, uint64_t samples,
                          absl::Span<const double> learning_rates) {
  RECON_CHECK_EQ(gradient.size(), layout_->params());
  RECON_CHECK(learning_rates.empty() || learning_rates.size() == layout_->groups().size());
  for (uint64_t& of_shard : samples_) of_shard += samples;
  OptimizerConfig now = rules_.optimizer;
  now.learning_rate *= std::exchange(now.schedule, LearningRateSchedule()).Factor(update);
  double scale = 1;
  if (now.clip_norm > 0) {
    const double norm = std::sqrt(SumOfSquares(gradient.data(), gradient.size()));
    if (norm > now.clip_norm) scale = now.clip_norm / norm;
  }
  for (const ShardPlacement& shard : layout_->shards()) {
    GroupPolicy policy = rules_.PolicyOf(layout_->groups()[shard.group]);
    policy.averaged = layout_->averaged(shard.group);
    const UpdateCoefficients c = CoefficientsFor(
        now, policy, steps_, policy.averaged ? 1 : scale,
        learning_rates.empty() ? std::nullopt : std::optional<double>(learning_rates[shard.group]));
    ApplyUpdate(c, gradient.data() + shard.offset, shard.size, parameters_.data() + shard.offset,
                state1_.empty() ? nullptr : state1_.data() + shard.offset,
                state2_.empty() ? nullptr : state2_.data() + shard.offset);
  }
  ++steps_;
  revision_ = NextRevision();
}

void InnerOptimizer::MoveTo(absl::Span<const float> parameters, uint64_t samples) {
  RECON_CHECK_EQ(parameters.size(), layout_->params());
  for (uint64_t& of_shard : samples_) of_shard += samples;
  parameters_.assign(parameters.begin(), parameters.end());
  ++steps_;
  revision_ = NextRevision();
}

bool InnerOptimizer::holds() const {
  return std::any_of(samples_.begin(), samples_.end(), [](uint64_t samples) { return samples > 0; });
}

std::vector<uint32_t> InnerOptimizer::TakeMovement(const std::vector<bool>& due, absl::Span<float> moved) {
  RECON_CHECK_EQ(moved.size(), layout_->params());
  RECON_CHECK(due.empty() || due.size() == layout_->shard_count());
  std::vector<uint32_t> samples(layout_->shard_count());
  for (uint32_t i = 0; i < layout_->shard_count(); ++i) {
    const ShardPlacement& shard = layout_->shards()[i];
    const bool taken = due.empty() || due[i];
    for (uint64_t at = shard.offset; at < shard.offset + shard.size; ++at) {
      moved[at] = taken ? taken_[at] - parameters_[at] : 0;
      if (taken) taken_[at] = parameters_[at];
    }
    if (taken)
      samples[i] = static_cast<uint32_t>(std::min<uint64_t>(std::exchange(samples_[i], 0), UINT32_MAX));
  }
  return samples;
}

}  // namespace recon
