#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "common/tensor/param_layout.h"
#include "proto/manifest.pb.h"

namespace recon {

// What the MLP backends share: sizes, tensors, initial values. Layer i has layer<i>.weight of shape
// [out, in] (group "default") and layer<i>.bias of shape [out] (group "no_decay"); hidden layers end in
// ReLU, the last in softmax cross-entropy.
struct MlpModel {
  std::vector<uint32_t> sizes;  // Inputs, hidden units..., classes.
  ModelSpec spec;

  size_t layers() const { return sizes.size() - 1; }
};

// "784-512-256-10": at least two sizes of 1 to 1,000,000.
absl::StatusOr<MlpModel> ParseMlp(const std::string& text);

// He's uniform initialization (He et al., ICCV 2015): weights in +-sqrt(6 / inputs), biases 0.
void InitMlp(const ParamLayout& layout, uint64_t seed, absl::Span<float> values);

}  // namespace recon
