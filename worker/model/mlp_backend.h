#pragma once

#include <memory>
#include <vector>

#include "worker/model/mlp_model.h"
#include "worker/model/model_backend.h"

namespace recon {

// A multilayer perceptron on the CPU; matrix products by OpenBLAS with `threads` threads.
class MlpBackend : public ModelBackend {
 public:
  MlpBackend(MlpModel model, int threads);

  const ModelSpec& spec() const override { return model_.spec; }
  std::string device() const override { return "cpu"; }
  bool simulated() const override { return false; }
  void InitialValues(uint64_t seed, absl::Span<float> values) const override {
    InitMlp(*layout_, seed, values);
  }
  absl::StatusOr<BatchResult> Gradient(const Batch& batch, const ParameterView& parameters,
                                       absl::Span<float> gradient) override;
  absl::StatusOr<BatchResult> Evaluate(const Batch& batch, const ParameterView& parameters) override;

 private:
  const float* Tensor(const float* values, size_t index) const {
    return values + layout_->tensors()[index].offset;
  }
  void Forward(const Batch& batch, const float* parameters);
  // Softmax in place of the last layer's outputs; with `delta`, what backpropagation starts from.
  BatchResult SoftmaxLoss(const Batch& batch, bool delta);
  void Backward(const Batch& batch, const float* parameters, float* gradient);

  MlpModel model_;
  std::vector<std::vector<float>> outputs_;  // Of each layer, samples x units.
  std::vector<float> delta_, previous_delta_;
};

}  // namespace recon
