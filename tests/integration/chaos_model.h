#pragma once

#include <cstdint>
#include <string>

#include "absl/time/time.h"
#include "common/snapshot/manifest.h"
#include "proto/manifest.pb.h"

namespace recon {

// What the workers of chaos_test push: every life of a worker counts its pushes in a value of its own, and
// adds up their steps in another, in three tensors that are shards of their own. With SGD at rate 1 a
// gradient of -x adds x.
inline constexpr uint32_t kChaosLives = 256;
inline constexpr uint32_t kChaosTensors = 3;
inline constexpr absl::Duration kChaosLinkCut = absl::Seconds(3);

inline ModelSpec ChaosModel(uint32_t workers) {
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

// Where a life counts; its sum of steps comes next.
inline uint32_t ChaosIndex(uint32_t worker, uint32_t life) { return (worker * kChaosLives + life) * 2; }

}  // namespace recon
