#pragma once

#include <memory>
#include <vector>

#include "absl/status/statusor.h"
#include "common/base/host_pinning.h"
#include "worker/cuda/measure_codecs.h"
#include "worker/model/mlp_model.h"
#include "worker/model/model_backend.h"

namespace recon {

// The CUDA backend as a module that is loaded when it is wanted: loading cuBLAS takes half a second, which a
// worker on the CPU, or one that replaces a dead one, should not pay; and the worker runs where there is no
// CUDA at all.

// What librecon_cuda.so offers, through the one symbol below. The module is never unloaded.
struct CudaModule {
  // Devices this process can use. Unavailable, with the reason, if there are none.
  absl::StatusOr<int> (*device_count)();
  absl::StatusOr<std::unique_ptr<ModelBackend>> (*make_mlp)(MlpModel model, int device, Precision precision);
  HostPinning pinning;
  // See measure_codecs.h.
  absl::StatusOr<std::vector<cuda::CodecMeasurement>> (*measure_codecs)(int device, uint64_t values,
                                                                        int rounds);
};
inline constexpr char kCudaModuleSymbol[] = "recon_cuda_module";
inline constexpr char kCudaModuleFile[] = "librecon_cuda.so";

// Loads the module from beside the program. NotFound, with the reason, if there is no CUDA driver, the module
// was not built, or it cannot be loaded. Thread-safe.
absl::StatusOr<const CudaModule*> LoadCudaModule();

}  // namespace recon
