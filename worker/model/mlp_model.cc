#include "worker/model/mlp_model.h"

#include <cmath>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "worker/data/dataset.h"

namespace recon {

absl::StatusOr<MlpModel> ParseMlp(const std::string& text) {
  MlpModel model;
  for (absl::string_view word : absl::StrSplit(text, '-')) {
    uint32_t size = 0;
    if (!absl::SimpleAtoi(word, &size) || size == 0 || size > 1'000'000) {
      return absl::InvalidArgumentError(
          absl::StrCat("--model mlp:", text, ": expected sizes of 1 to 1000000, as in mlp:784-512-256-10"));
    }
    model.sizes.push_back(size);
  }
  if (model.sizes.size() < 2 || model.sizes.size() > 64) {
    return absl::InvalidArgumentError(absl::StrCat("--model mlp:", text, ": expected 2 to 64 sizes"));
  }
  model.spec.set_name(absl::StrCat("mlp:", text));
  for (size_t i = 0; i < model.layers(); ++i) {
    TensorSpec* weight = model.spec.add_tensors();
    weight->set_name(absl::StrCat("layer", i, ".weight"));
    weight->add_shape(model.sizes[i + 1]);
    weight->add_shape(model.sizes[i]);
    TensorSpec* bias = model.spec.add_tensors();
    bias->set_name(absl::StrCat("layer", i, ".bias"));
    bias->add_shape(model.sizes[i + 1]);
    bias->set_group("no_decay");
  }
  return model;
}

void InitMlp(const ParamLayout& layout, uint64_t seed, absl::Span<float> values) {
  uint64_t state = seed;
  for (const TensorPlacement& tensor : layout.tensors()) {
    absl::Span<float> out = values.subspan(tensor.offset, tensor.size);
    if (tensor.shape.size() < 2) {
      for (float& value : out) value = 0;
      continue;
    }
    const double bound = std::sqrt(6.0 / static_cast<double>(tensor.shape[1]));
    for (float& value : out) {
      const double uniform = static_cast<double>(SplitMix64(&state) >> 11) * 0x1.0p-53;
      value = static_cast<float>((2 * uniform - 1) * bound);
    }
  }
}

}  // namespace recon
