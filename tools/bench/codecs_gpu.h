#pragma once

#include "absl/status/statusor.h"
#include "nlohmann/json_fwd.hpp"
#include "tools/bench/codecs.h"

namespace recon {

// The encoders of a CUDA device beside a device-to-device copy and, where PyTorch has CUDA, torch.topk in the
// same run. Rates count the bytes that must be moved: the gradient read, the residual read and written
// (topk), the payload written. NotFound without a device.
absl::StatusOr<nlohmann::ordered_json> RunCodecsOnGpu(const CodecsOptions& options, int device);

}  // namespace recon
