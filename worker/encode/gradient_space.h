#pragma once

#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "common/tensor/param_layout.h"
#include "worker/encode/gradient_encoder.h"

namespace recon {

// Where gradients lie between the code that computes them and the one that encodes them: the host's memory
// here, a device's in other implementations.
//
// Threads: one at a time. It outlives the buffers and encoders it made.
class GradientSpace {
 public:
  virtual ~GradientSpace() = default;

  // "cpu", "cuda:0", ...
  virtual std::string device() const { return "cpu"; }

  // Where the tensors lie. Called once, before anything below. `layout` must outlive the space.
  void Bind(const ParamLayout* layout) { layout_ = layout; }

  // Unavailable if a device has no memory for it.
  virtual absl::StatusOr<std::unique_ptr<GradientBuffer>> NewGradientBuffer();
  virtual absl::StatusOr<std::unique_ptr<GradientEncoder>> NewEncoder(const EncoderOptions& options);
  // Puts values from the host into such a buffer; ParamLayout::params() of them.
  virtual absl::Status Load(absl::Span<const float> values, GradientBuffer* gradient);
  virtual absl::Status ZeroGradient(GradientBuffer* gradient);

 protected:
  const ParamLayout* layout_ = nullptr;
};

}  // namespace recon
