#include "worker/training/inner_optimizer.h"

#include <cmath>
#include <vector>

#include "catch2/catch.hpp"
#include "common/optim/optimizer_kernels.h"

namespace recon {
namespace {

ParamLayout TwoGroups() {
  ModelSpec model;
  model.set_name("two");
  for (const char* name : {"w", "b"}) {
    TensorSpec* tensor = model.add_tensors();
    tensor->set_name(name);
    tensor->add_shape(50);
    if (name[0] == 'b') tensor->set_group("no_decay");
  }
  return *ParamLayout::Create(model);
}

std::vector<float> Gradient(int step, size_t count) {
  std::vector<float> gradient(count);
  for (size_t i = 0; i < count; ++i)
    gradient[i] = std::sin(static_cast<float>(step * 100) + static_cast<float>(i));
  return gradient;
}

ApplyRules Rules(OptimizerKind kind) {
  ApplyRules rules;
  rules.optimizer.kind = kind;
  rules.optimizer.learning_rate = 0.1;
  rules.optimizer.weight_decay = 0.01;
  rules.groups["no_decay"].weight_decay_scale = 0;
  return rules;
}

}  // namespace

TEST_CASE("inner steps are the optimizer's, by group, and a round tells how far it has moved", "[local]") {
  const ParamLayout layout = TwoGroups();
  const size_t count = layout.params();
  for (const OptimizerKind kind : {OptimizerKind::kSgd, OptimizerKind::kMomentum, OptimizerKind::kAdamW}) {
    INFO(OptimizerName(kind));
    const ApplyRules rules = Rules(kind);
    InnerOptimizer inner(rules, &layout);
    std::vector<float> begin(count, 0.5f);
    std::vector<float> expected = begin;
    std::vector<float> state1(count), state2(count), moved(count);
    const std::vector<uint64_t> versions(layout.shard_count(), 1);
    uint64_t revision = inner.view().revision;
    for (int round = 0; round < 2; ++round) {  // State stays from round to round.
      inner.Begin(begin, versions, 1);
      expected = begin;
      for (int step = 0; step < 3; ++step) {
        const uint64_t update = static_cast<uint64_t>(3 * round + step);
        inner.Step(update, Gradient(step, count), 1);
        for (const ShardPlacement& shard : layout.shards()) {
          const UpdateCoefficients c =
              CoefficientsFor(rules.optimizer, rules.PolicyOf(layout.groups()[shard.group]), update, 1);
          ApplyUpdateReference(c, Gradient(step, count).data() + shard.offset, shard.size,
                               expected.data() + shard.offset, state1.data() + shard.offset,
                               state2.data() + shard.offset);
        }
        CHECK(inner.view().revision > revision);  // Or a device would go on with the parameters before.
        revision = inner.view().revision;
      }
      CHECK(std::vector<float>(inner.view().values.begin(), inner.view().values.end()) == expected);
      inner.TakeMovement(/*due=*/{}, absl::MakeSpan(moved));
      for (size_t i = 0; i < count; ++i) REQUIRE(moved[i] == begin[i] - expected[i]);
      for (float& value : begin) value += 0.25f;  // As if others had moved them.
    }
  }
}

TEST_CASE("the inner schedule goes by the job's batches, and gradients are clipped", "[local]") {
  const ParamLayout layout = TwoGroups();
  ApplyRules rules = Rules(OptimizerKind::kSgd);
  rules.optimizer.weight_decay = 0;
  rules.optimizer.schedule = *ParseSchedule("step:100:0.5");
  rules.optimizer.clip_norm = 1;
  InnerOptimizer inner(rules, &layout);
  const std::vector<float> zeros(layout.params());
  const std::vector<float> ones(layout.params(), 1.0f);  // Of norm 10: clipped to 0.1 each.
  std::vector<float> moved(layout.params());
  for (const uint64_t update : {99, 100, 200}) {
    inner.Begin(zeros, {1, 1}, 1);
    inner.Step(update, ones, 1);
    inner.TakeMovement(/*due=*/{}, absl::MakeSpan(moved));
    const double rate = update == 99 ? 0.1 : update == 100 ? 0.05 : 0.025;
    CHECK(moved[7] == Approx(rate * 0.1));
  }
}

TEST_CASE("what moves while a push is under way is of the next one", "[local]") {
  const ParamLayout layout = TwoGroups();
  ApplyRules rules = Rules(OptimizerKind::kSgd);
  rules.optimizer.weight_decay = 0;
  rules.optimizer.learning_rate = 1;
  InnerOptimizer inner(rules, &layout);
  const auto values = [&](float first, float second) {
    std::vector<float> all(layout.params(), first);
    std::fill(all.begin() + static_cast<ptrdiff_t>(layout.shards()[1].offset), all.end(), second);
    return all;
  };
  const auto now = [&] { return std::vector<float>(inner.view().values.begin(), inner.view().values.end()); };
  std::vector<float> moved(layout.params());
  inner.Begin(values(8, 8), {1, 1}, 1);
  inner.Step(0, values(1, 1), 64);
  CHECK(inner.TakeMovement({true, false}, absl::MakeSpan(moved)) == std::vector<uint32_t>{64, 0});
  CHECK(moved == values(1, 0));
  inner.Step(1, values(2, 2), 32);
  CHECK(now() == values(5, 5));
  // The first shard's reply: with others' movement, 8 has become 4. What came after the push goes on from
  // there.
  inner.Follow(values(4, 100), {2, 1}, 1);
  CHECK(now() == values(2, 5));
  CHECK(inner.TakeMovement({false, true}, absl::MakeSpan(moved)) == std::vector<uint32_t>{0, 96});
  CHECK(moved == values(0, 3));
  inner.Step(2, values(1, 1), 1);
  inner.TakeMovement({true, false}, absl::MakeSpan(moved));
  CHECK(moved == values(3, 0));
  // A server that was started anew counts versions anew: all of its values count.
  inner.Follow(values(10, 20), {2, 1}, 2);
  CHECK(now() == values(10, 19));
  inner.Begin(values(3, 3), {3, 3}, 2);
  CHECK(now() == values(3, 3));
  inner.TakeMovement({}, absl::MakeSpan(moved));
  CHECK(moved == values(0, 0));
}

}  // namespace recon
