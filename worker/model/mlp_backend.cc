#include "worker/model/mlp_backend.h"

#include <cblas.h>

#include <algorithm>
#include <cmath>
#include <utility>

namespace recon {

MlpBackend::MlpBackend(MlpModel model, int threads, Precision precision)
    : model_(std::move(model)), rounder_(precision), outputs_(model_.layers()) {
  openblas_set_num_threads(threads);
}

bool MlpBackend::Rounded(const ParameterView& parameters, const float** rounded) {
  *rounded = parameters.values.data();
  if (!rounder_.rounds()) return true;
  if (parameters.revision != rounded_revision_) {
    rounded_parameters_.assign(parameters.values.begin(), parameters.values.end());
    parameters_fit_ = rounder_.Round(absl::MakeSpan(rounded_parameters_));
    rounded_revision_ = parameters.revision;
  }
  *rounded = rounded_parameters_.data();
  return parameters_fit_;
}

bool MlpBackend::Forward(size_t samples, const float* features, const float* parameters, Rounder* rounder) {
  const auto rows = static_cast<int>(samples);
  const float* input = features;
  bool fits = true;
  for (size_t layer = 0; layer < model_.layers(); ++layer) {
    const auto in = static_cast<int>(model_.sizes[layer]);
    const auto out = static_cast<int>(model_.sizes[layer + 1]);
    const float* bias = Tensor(parameters, 2 * layer + 1);
    std::vector<float>& output = outputs_[layer];
    output.resize(samples * model_.sizes[layer + 1]);
    for (int i = 0; i < rows; ++i)
      std::copy(bias, bias + out, output.begin() + static_cast<ptrdiff_t>(i) * out);
    cblas_sgemm(CblasRowMajor, CblasNoTrans, CblasTrans, rows, out, in, 1.0f, input, in,
                Tensor(parameters, 2 * layer), in, 1.0f, output.data(), out);
    if (layer + 1 < model_.layers()) {
      for (float& value : output) value = std::max(value, 0.0f);
    }
    if (rounder != nullptr) fits = rounder->Round(absl::MakeSpan(output)) && fits;
    input = output.data();
  }
  return fits;
}

BatchResult MlpBackend::SoftmaxLoss(const Batch& batch, float weight) {
  const size_t classes = model_.sizes.back();
  BatchResult result;
  result.samples = batch.samples;
  if (weight > 0) delta_.resize(batch.samples * classes);
  for (size_t i = 0; i < batch.samples; ++i) {
    const float* logits = outputs_.back().data() + i * classes;
    const size_t best = static_cast<size_t>(std::max_element(logits, logits + classes) - logits);
    double sum = 0;
    for (size_t j = 0; j < classes; ++j) sum += std::exp(static_cast<double>(logits[j]) - logits[best]);
    const uint32_t label = batch.labels[i];
    result.loss_sum += std::log(sum) - (static_cast<double>(logits[label]) - logits[best]);
    result.correct += best == label ? 1 : 0;
    for (size_t j = 0; weight > 0 && j < classes; ++j) {
      const double probability = std::exp(static_cast<double>(logits[j]) - logits[best]) / sum;
      delta_[i * classes + j] = (static_cast<float>(probability) - (j == label ? 1.0f : 0.0f)) * weight;
    }
  }
  return result;
}

bool MlpBackend::Backward(size_t samples, const float* features, const float* parameters,
                          const GradientTerms& terms, float* gradient) {
  const auto rows = static_cast<int>(samples);
  const float unscale = 1.0f / terms.loss_scale;
  bool fits = rounder_.Round(absl::MakeSpan(delta_));
  for (size_t layer = model_.layers(); layer-- > 0;) {
    const auto in = static_cast<int>(model_.sizes[layer]);
    const auto out = static_cast<int>(model_.sizes[layer + 1]);
    const float* input = layer == 0 ? features : outputs_[layer - 1].data();
    float* weight_gradient = gradient + layout_->tensors()[2 * layer].offset;
    float* bias_gradient = gradient + layout_->tensors()[2 * layer + 1].offset;
    cblas_sgemm(CblasRowMajor, CblasTrans, CblasNoTrans, out, in, rows, unscale, delta_.data(), out, input,
                in, terms.add ? 1.0f : 0.0f, weight_gradient, in);
    if (!terms.add) std::fill(bias_gradient, bias_gradient + out, 0.0f);
    for (int i = 0; i < rows; ++i) {
      for (int j = 0; j < out; ++j) bias_gradient[j] += unscale * delta_[static_cast<size_t>(i) * out + j];
    }
    if (layer == 0) break;
    previous_delta_.resize(samples * model_.sizes[layer]);
    cblas_sgemm(CblasRowMajor, CblasNoTrans, CblasNoTrans, rows, in, out, 1.0f, delta_.data(), out,
                Tensor(parameters, 2 * layer), in, 0.0f, previous_delta_.data(), in);
    for (size_t i = 0; i < previous_delta_.size(); ++i) {
      if (input[i] <= 0) previous_delta_[i] = 0;  // ReLU's derivative, from its output.
    }
    std::swap(delta_, previous_delta_);
    fits = rounder_.Round(absl::MakeSpan(delta_)) && fits;
  }
  return fits;
}

absl::StatusOr<BatchResult> MlpBackend::ComputeGradient(const Batch& batch, const ParameterView& parameters,
                                                        const GradientTerms& terms,
                                                        absl::Span<float> gradient) {
  const float* rounded = nullptr;
  bool fits = Rounded(parameters, &rounded);
  const float* features = batch.features.data();
  if (rounder_.rounds()) {
    rounded_features_.assign(batch.features.begin(), batch.features.end());
    fits = rounder_.Round(absl::MakeSpan(rounded_features_)) && fits;
    features = rounded_features_.data();
  }
  fits = Forward(batch.samples, features, rounded, &rounder_) && fits;
  BatchResult result = SoftmaxLoss(batch, terms.LossWeight(batch.samples));
  fits = Backward(batch.samples, features, rounded, terms, gradient.data()) && fits;
  result.overflow = !fits;
  return result;
}

void MlpBackend::FreeScratch() {
  outputs_ = std::vector<std::vector<float>>(model_.layers());
  for (std::vector<float>* scratch : {&rounded_features_, &delta_, &previous_delta_}) *scratch = {};
}

absl::StatusOr<BatchResult> MlpBackend::Evaluate(const Batch& batch, const ParameterView& parameters) {
  Forward(batch.samples, batch.features.data(), parameters.values.data(), nullptr);
  return SoftmaxLoss(batch, 0);
}

}  // namespace recon
