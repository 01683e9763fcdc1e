#pragma once

#include <cstdint>
#include <string>

#include "absl/time/time.h"
#include "common/base/check.h"
#include "common/snapshot/manifest.h"
#include "common/tensor/param_layout.h"
#include "proto/manifest.pb.h"

namespace recon {

// What the workers of chaos_test push: every life of a worker counts its pushes in a value of its own, and
// adds up a weight of their steps in another, in three tensors that are shards of their own. With SGD at rate
// 1 a gradient of -x adds x. The weights are small: FP32 adds whole numbers without error up to 2^24.
inline constexpr uint32_t kChaosLives = 160;
inline constexpr uint32_t kChaosTensors = 3;
inline constexpr absl::Duration kChaosLinkCut = absl::Seconds(3);

inline ModelSpec ChaosModel(uint32_t workers) {
  RECON_CHECK_LE(workers * kChaosLives * 2, kShardParamsMax, "a tensor of several shards");
  ModelSpec model;
  model.set_name("chaos");
  for (uint32_t i = 0; i < kChaosTensors; ++i) {
    TensorSpec* tensor = model.add_tensors();
    tensor->set_name("tensor" + std::to_string(i));
    tensor->set_group("group" + std::to_string(i));
    tensor->add_shape(workers * kChaosLives * 2);
  }
  return model;
}

inline constexpr uint64_t kChaosWeights = 97;
inline uint64_t ChaosWeight(uint64_t step) { return step % kChaosWeights + 1; }
// Of the first `count` steps.
inline uint64_t ChaosSum(uint64_t count) {
  const uint64_t rounds = count / kChaosWeights, rest = count % kChaosWeights;
  return rounds * kChaosWeights * (kChaosWeights + 1) / 2 + rest * (rest + 1) / 2;
}

// Where a life counts; its sum of weights comes next.
inline uint32_t ChaosIndex(uint32_t worker, uint32_t life) { return (worker * kChaosLives + life) * 2; }

}  // namespace recon
