#pragma once

#include <algorithm>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "common/tensor/param_layout.h"
#include "common/tensor/parameter_view.h"
#include "worker/data/dataset.h"
#include "worker/encode/gradient_space.h"
#include "worker/model/precision.h"

namespace recon {

struct BatchResult {
  uint64_t samples = 0;
  uint64_t correct = 0;
  double loss_sum = 0;  // Sum over the samples of the loss.
  // Some value of the gradient, or on the way to it, is not finite, or too large for the precision. The
  // gradient means nothing then.
  bool overflow = false;
};

// Which part of a gradient is computed.
struct GradientTerms {
  // Samples of the whole batch, of which the given one is a piece: the gradient is of the sum of its losses
  // over so many. 0: it is the whole.
  uint64_t batch_samples = 0;
  // To be added to what is there: the gradients of all pieces are that of the whole, to rounding.
  bool add = false;
  // The loss is multiplied by it, and gradients of parameters are divided by it when they are FP32: see
  // LossScaler. A power of two.
  float loss_scale = 1;

  float LossWeight(uint64_t samples) const {
    return loss_scale / static_cast<float>(batch_samples == 0 ? samples : batch_samples);
  }
};

// Computes gradients of one model on one device.
//
// Threads: one thread at a time. Ownership: the backend owns its scratch and device memory, and outlives the
// buffers and encoders it made.
class ModelBackend : public GradientSpace {
 public:
  virtual const ModelSpec& spec() const = 0;
  // Whether the computing is a stand-in for load tests; shown wherever its numbers appear.
  virtual bool simulated() const = 0;

  // Initial parameters, the same for one seed on every machine. `values` has layout->params() elements.
  virtual void InitialValues(uint64_t seed, absl::Span<float> values) const = 0;

  // The gradient of the mean loss over the batch, into `gradient` (layout->params() elements), computed in
  // the backend's precision. Pieces of a batch (`terms`) are given one after the other, with the same
  // parameters. ResourceExhausted if the device has no memory for so many samples: fewer may do.
  absl::StatusOr<BatchResult> Gradient(const Batch& batch, const ParameterView& parameters,
                                       absl::Span<float> gradient, const GradientTerms& terms = {}) {
    return ComputeGradient(batch, parameters, terms, gradient);
  }
  // The same, into a buffer of NewGradientBuffer(), where NewEncoder()'s encoder finds it: a device keeps it.
  absl::StatusOr<BatchResult> GradientInto(const Batch& batch, const ParameterView& parameters,
                                           GradientBuffer* gradient, const GradientTerms& terms = {}) {
    return ComputeGradientInto(batch, parameters, terms, gradient);
  }
  // Loss and hits without a gradient, in FP32: of the parameters that the server has.
  virtual absl::StatusOr<BatchResult> Evaluate(const Batch& batch, const ParameterView& parameters) = 0;
  // Gives back memory that grows with the samples of a batch: smaller ones come, or there was not enough.
  virtual void FreeScratch() {}

 private:
  virtual absl::StatusOr<BatchResult> ComputeGradient(const Batch& batch, const ParameterView& parameters,
                                                      const GradientTerms& terms,
                                                      absl::Span<float> gradient) = 0;
  virtual absl::StatusOr<BatchResult> ComputeGradientInto(const Batch& batch, const ParameterView& parameters,
                                                          const GradientTerms& terms,
                                                          GradientBuffer* gradient) {
    return ComputeGradient(batch, parameters, terms, absl::MakeSpan(gradient->host));
  }
};

// Puts tensors into other groups: each of `rules` is a pattern of tensor names (as a shell's) and a group;
// the first that matches counts. InvalidArgument for a pattern that matches none.
absl::Status AssignGroups(const std::vector<std::pair<std::string, std::string>>& rules, ModelSpec* model);

struct ModelOptions {
  std::string model;   // mlp:784-512-256-10, synthetic:NAME or synthetic:FILE.
  std::string device;  // auto, cpu or cuda:N.
  // Shape of the data, which the model must fit.
  uint32_t features = 0;
  uint32_t classes = 0;
  int threads = 1;  // CPU threads of matrix products.
  Precision precision = Precision::kFp32;
  uint64_t seed = 1;
};

// InvalidArgument, naming the flag, for an unknown model or device, or a model that does not fit the data.
absl::StatusOr<std::unique_ptr<ModelBackend>> MakeBackend(const ModelOptions& options);

}  // namespace recon
