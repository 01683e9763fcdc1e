#include "worker/model/mlp_backend.h"

#include <cblas.h>

#include <algorithm>
#include <cmath>
#include <utility>

namespace recon {

MlpBackend::MlpBackend(MlpModel model, int threads) : model_(std::move(model)), outputs_(model_.layers()) {
  openblas_set_num_threads(threads);
}

void MlpBackend::Forward(const Batch& batch, const float* parameters) {
  const auto samples = static_cast<int>(batch.samples);
  const float* input = batch.features.data();
  for (size_t layer = 0; layer < model_.layers(); ++layer) {
    const auto in = static_cast<int>(model_.sizes[layer]);
    const auto out = static_cast<int>(model_.sizes[layer + 1]);
    const float* bias = Tensor(parameters, 2 * layer + 1);
    std::vector<float>& output = outputs_[layer];
    output.resize(batch.samples * model_.sizes[layer + 1]);
    for (int i = 0; i < samples; ++i)
      std::copy(bias, bias + out, output.begin() + static_cast<ptrdiff_t>(i) * out);
    cblas_sgemm(CblasRowMajor, CblasNoTrans, CblasTrans, samples, out, in, 1.0f, input, in,
                Tensor(parameters, 2 * layer), in, 1.0f, output.data(), out);
    if (layer + 1 < model_.layers()) {
      for (float& value : output) value = std::max(value, 0.0f);
    }
    input = output.data();
  }
}

BatchResult MlpBackend::SoftmaxLoss(const Batch& batch, bool delta) {
  const size_t classes = model_.sizes.back();
  const float scale = 1.0f / static_cast<float>(batch.samples);
  BatchResult result;
  result.samples = batch.samples;
  if (delta) delta_.resize(batch.samples * classes);
  for (size_t i = 0; i < batch.samples; ++i) {
    const float* logits = outputs_.back().data() + i * classes;
    const size_t best = static_cast<size_t>(std::max_element(logits, logits + classes) - logits);
    double sum = 0;
    for (size_t j = 0; j < classes; ++j) sum += std::exp(static_cast<double>(logits[j]) - logits[best]);
    const uint32_t label = batch.labels[i];
    result.loss_sum += std::log(sum) - (static_cast<double>(logits[label]) - logits[best]);
    result.correct += best == label ? 1 : 0;
    for (size_t j = 0; delta && j < classes; ++j) {
      const double probability = std::exp(static_cast<double>(logits[j]) - logits[best]) / sum;
      delta_[i * classes + j] = (static_cast<float>(probability) - (j == label ? 1.0f : 0.0f)) * scale;
    }
  }
  return result;
}

void MlpBackend::Backward(const Batch& batch, const float* parameters, float* gradient) {
  const auto samples = static_cast<int>(batch.samples);
  for (size_t layer = model_.layers(); layer-- > 0;) {
    const auto in = static_cast<int>(model_.sizes[layer]);
    const auto out = static_cast<int>(model_.sizes[layer + 1]);
    const float* input = layer == 0 ? batch.features.data() : outputs_[layer - 1].data();
    float* weight_gradient = gradient + layout_->tensors()[2 * layer].offset;
    float* bias_gradient = gradient + layout_->tensors()[2 * layer + 1].offset;
    cblas_sgemm(CblasRowMajor, CblasTrans, CblasNoTrans, out, in, samples, 1.0f, delta_.data(), out, input,
                in, 0.0f, weight_gradient, in);
    std::fill(bias_gradient, bias_gradient + out, 0.0f);
    for (int i = 0; i < samples; ++i) {
      for (int j = 0; j < out; ++j) bias_gradient[j] += delta_[static_cast<size_t>(i) * out + j];
    }
    if (layer == 0) break;
    previous_delta_.resize(batch.samples * model_.sizes[layer]);
    cblas_sgemm(CblasRowMajor, CblasNoTrans, CblasNoTrans, samples, in, out, 1.0f, delta_.data(), out,
                Tensor(parameters, 2 * layer), in, 0.0f, previous_delta_.data(), in);
    for (size_t i = 0; i < previous_delta_.size(); ++i) {
      if (input[i] <= 0) previous_delta_[i] = 0;  // ReLU's derivative, from its output.
    }
    std::swap(delta_, previous_delta_);
  }
}

absl::StatusOr<BatchResult> MlpBackend::Gradient(const Batch& batch, const ParameterView& parameters,
                                                 absl::Span<float> gradient) {
  Forward(batch, parameters.values.data());
  const BatchResult result = SoftmaxLoss(batch, /*delta=*/true);
  Backward(batch, parameters.values.data(), gradient.data());
  return result;
}

absl::StatusOr<BatchResult> MlpBackend::Evaluate(const Batch& batch, const ParameterView& parameters) {
  Forward(batch, parameters.values.data());
  return SoftmaxLoss(batch, /*delta=*/false);
}

}  // namespace recon
