#include "worker/encode/gradient_space.h"

#include <algorithm>

#include "worker/encode/cpu_encoder.h"

namespace recon {

absl::StatusOr<std::unique_ptr<GradientBuffer>> GradientSpace::NewGradientBuffer() {
  auto buffer = std::make_unique<GradientBuffer>();
  buffer->host.resize(layout_->params());
  return buffer;
}

absl::StatusOr<std::unique_ptr<GradientEncoder>> GradientSpace::NewEncoder(const EncoderOptions& options) {
  return std::make_unique<CpuEncoder>(options, layout_);
}

absl::Status GradientSpace::Load(absl::Span<const float> values, GradientBuffer* gradient) {
  std::copy(values.begin(), values.end(), gradient->host.begin());
  return absl::OkStatus();
}

absl::Status GradientSpace::ZeroGradient(GradientBuffer* gradient) {
  std::fill(gradient->host.begin(), gradient->host.end(), 0.0f);
  return absl::OkStatus();
}

}  // namespace recon
