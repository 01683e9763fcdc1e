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

namespace recon {

struct BatchResult {
  uint64_t samples = 0;
  uint64_t correct = 0;
  double loss_sum = 0;  // Sum over the samples of the loss.
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

  // The gradient of the mean loss over the batch, into `gradient` (layout->params() elements).
  virtual absl::StatusOr<BatchResult> Gradient(const Batch& batch, const ParameterView& parameters,
                                               absl::Span<float> gradient) = 0;
  // The same, into a buffer of NewGradientBuffer(), where NewEncoder()'s encoder finds it: a device keeps it.
  virtual absl::StatusOr<BatchResult> GradientInto(const Batch& batch, const ParameterView& parameters,
                                                   GradientBuffer* gradient) {
    return Gradient(batch, parameters, absl::MakeSpan(gradient->host));
  }
  // Loss and hits without a gradient.
  virtual absl::StatusOr<BatchResult> Evaluate(const Batch& batch, const ParameterView& parameters) = 0;
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
  uint64_t seed = 1;
};

// InvalidArgument, naming the flag, for an unknown model or device, or a model that does not fit the data.
absl::StatusOr<std::unique_ptr<ModelBackend>> MakeBackend(const ModelOptions& options);

}  // namespace recon
