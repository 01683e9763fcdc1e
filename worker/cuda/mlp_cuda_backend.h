#pragma once

#include <memory>

#include "absl/status/statusor.h"
#include "worker/model/mlp_model.h"
#include "worker/model/model_backend.h"

namespace recon {

// Devices this process can use; 0 without a driver.
int CudaDeviceCount();

// The MLP on a CUDA device: matrix products by cuBLAS, the rest by our kernels. Parameters are uploaded when
// their revision changes; the gradient comes back to host memory. Unavailable if the device fails.
absl::StatusOr<std::unique_ptr<ModelBackend>> MakeMlpCudaBackend(MlpModel model, int device);

}  // namespace recon
