#pragma once

#include <memory>
#include <vector>

#include "worker/model/mlp_model.h"
#include "worker/model/model_backend.h"
#include "worker/model/precision.h"

namespace recon {

// A multilayer perceptron on the CPU; matrix products by OpenBLAS with `threads` threads. It computes in FP32
// whatever the precision: with another one parameters, outputs and their gradients are rounded to it after
// each layer, which shows what a device that computes in it would learn, and is slower than FP32.
class MlpBackend : public ModelBackend {
 public:
  MlpBackend(MlpModel model, int threads, Precision precision = Precision::kFp32);

  const ModelSpec& spec() const override { return model_.spec; }
  std::string device() const override { return "cpu"; }
  bool simulated() const override { return false; }
  void InitialValues(uint64_t seed, absl::Span<float> values) const override {
    InitMlp(*layout_, seed, values);
  }
  absl::StatusOr<BatchResult> Evaluate(const Batch& batch, const ParameterView& parameters) override;
  void FreeScratch() override;

 private:
  absl::StatusOr<BatchResult> ComputeGradient(const Batch& batch, const ParameterView& parameters,
                                              const GradientTerms& terms,
                                              absl::Span<float> gradient) override;
  const float* Tensor(const float* values, size_t index) const {
    return values + layout_->tensors()[index].offset;
  }
  // The parameters as they are computed with; whether they fit the precision.
  bool Rounded(const ParameterView& parameters, const float** rounded);
  // Without a rounder in FP32, here and below. False if something did not fit the precision.
  bool Forward(size_t samples, const float* features, const float* parameters, Rounder* rounder);
  // Softmax of the last layer's outputs. With `weight`, by which a sample's loss is multiplied, delta_
  // becomes what backpropagation starts from.
  BatchResult SoftmaxLoss(const Batch& batch, float weight);
  bool Backward(size_t samples, const float* features, const float* parameters, const GradientTerms& terms,
                float* gradient);

  MlpModel model_;
  Rounder rounder_;
  std::vector<float> rounded_parameters_, rounded_features_;
  uint64_t rounded_revision_ = ~uint64_t{0};
  bool parameters_fit_ = true;
  std::vector<std::vector<float>> outputs_;  // Of each layer, samples x units.
  std::vector<float> delta_, previous_delta_;
};

}  // namespace recon
