#pragma once

#include <memory>

#include "absl/status/statusor.h"
#include "common/tensor/param_layout.h"
#include "worker/cuda/device_memory.h"
#include "worker/encode/gradient_encoder.h"

namespace recon::cuda {

// A gradient in device memory. `ready` is recorded behind the kernels that write it.
class DeviceGradient : public GradientBuffer {
 public:
  DeviceBuffer<float> values;
  Event ready;
};

// An encoder on `device` for the gradients of a backend there. Payloads come out in pinned memory. `layout`
// must outlive it. Unavailable if the device fails or has not enough memory.
absl::StatusOr<std::unique_ptr<GradientEncoder>> MakeCudaEncoder(const EncoderOptions& options,
                                                                 const ParamLayout* layout, int device);
absl::StatusOr<std::unique_ptr<DeviceGradient>> MakeDeviceGradient(const ParamLayout& layout, int device);

}  // namespace recon::cuda
