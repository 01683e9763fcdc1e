#include "worker/encode/gradient_progress.h"

#include <thread>
#include <vector>

#include "catch2/catch.hpp"

namespace recon {
namespace {

using Next = GradientProgress::Next;

// Shards 0 and 1 are of "large", of kShardParamsMax and 100 values; 2 is of "small", of 10.
ParamLayout ThreeShards() {
  ModelSpec model;
  model.set_name("three");
  for (const auto& [name, size] : {std::pair("large", kShardParamsMax + 100), std::pair("small", 10u)}) {
    TensorSpec* tensor = model.add_tensors();
    tensor->set_name(name);
    tensor->set_group(name);
    tensor->add_shape(size);
  }
  return *ParamLayout::Create(model);
}

}  // namespace

TEST_CASE("a shard of a gradient is ready when all of it is filled, in whatever pieces", "[encode]") {
  const ParamLayout layout = ThreeShards();
  REQUIRE(layout.shard_count() == 3);
  GradientProgress progress(&layout);
  std::vector<bool> due;
  const uint64_t small = layout.shards()[2].offset;
  progress.Filled(small + 4, 6);
  progress.Filled(small, 4);
  CHECK(progress.Take(10, &due) == Next::kSome);
  CHECK(due == std::vector<bool>{false, false, true});
  // A piece of two shards.
  progress.Filled(5, kShardParamsMax + 95);
  CHECK(progress.Take(100, &due) == Next::kSome);
  CHECK(due == std::vector<bool>{false, true, false});
  progress.Filled(0, 5);
  CHECK(progress.Take(1, &due) == Next::kSome);
  CHECK(due == std::vector<bool>{true, false, false});
  progress.Complete();
  CHECK(progress.Take(1, &due) == Next::kLast);
  CHECK(due == std::vector<bool>{false, false, false});
}

TEST_CASE("a gradient that is complete has all shards that were not taken", "[encode]") {
  const ParamLayout layout = ThreeShards();
  GradientProgress progress(&layout);
  std::vector<bool> due;
  progress.Filled(layout.shards()[2].offset, 10);
  CHECK(progress.Take(1, &due) == Next::kSome);
  progress.Filled(3, 7);
  std::thread completes([&] { progress.Complete(); });
  CHECK(progress.Take(layout.params(), &due) == Next::kLast);
  completes.join();
  CHECK(due == std::vector<bool>{true, true, false});
}

TEST_CASE("what is not filled of a gradient can be set to 0", "[encode]") {
  const ParamLayout layout = ThreeShards();
  GradientProgress progress(&layout);
  std::vector<float> gradient(layout.params(), 7);
  progress.Filled(20, 5);
  progress.Filled(3, 2);
  progress.ZeroRest(absl::MakeSpan(gradient));
  for (size_t i = 0; i < gradient.size(); ++i) {
    const bool filled = (i >= 20 && i < 25) || i == 3 || i == 4;
    if (gradient[i] != (filled ? 7.0f : 0.0f)) FAIL("value " << i << " is " << gradient[i]);
  }
}

TEST_CASE("a gradient that is abandoned is waited for no longer", "[encode]") {
  const ParamLayout layout = ThreeShards();
  GradientProgress progress(&layout);
  progress.Filled(0, 10);
  std::thread abandons([&] { progress.Abandon(); });
  std::vector<bool> due;
  CHECK(progress.Take(layout.params(), &due) == Next::kAbandoned);
  abandons.join();
}

}  // namespace recon
