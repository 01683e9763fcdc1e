#pragma once

#include <cstdint>
#include <vector>

#include "absl/status/statusor.h"

namespace recon::cuda {

// One encoder on one size: medians of the rounds.
struct CodecMeasurement {
  const char* codec = "";
  uint64_t values = 0;
  double seconds = 0;       // Of the kernels, from gradient to packed payload on the device.
  double copy_seconds = 0;  // Of a device-to-device copy of the FP32 gradient, in the same rounds.
  uint64_t payload_bytes = 0;
};

// Encodes gradients of `values` normally distributed values with fp16, bf16, int8 and topk (ratio 0.01, error
// feedback, after 20 pushes) on `device`. Unavailable if the device fails or has not enough memory.
absl::StatusOr<std::vector<CodecMeasurement>> MeasureCodecs(int device, uint64_t values, int rounds);

}  // namespace recon::cuda
