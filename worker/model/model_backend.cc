#include "worker/model/model_backend.h"

#include "worker/encode/cpu_encoder.h"

namespace recon {

absl::StatusOr<std::unique_ptr<GradientBuffer>> ModelBackend::NewGradientBuffer() {
  auto buffer = std::make_unique<GradientBuffer>();
  buffer->host.resize(layout_->params());
  return buffer;
}

absl::StatusOr<std::unique_ptr<GradientEncoder>> ModelBackend::NewEncoder(const EncoderOptions& options) {
  return std::make_unique<CpuEncoder>(options, layout_);
}

}  // namespace recon
