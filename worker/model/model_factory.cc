#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "absl/strings/strip.h"
#include "common/base/host_pinning.h"
#include "common/base/status_macros.h"
#include "worker/cuda/cuda_module.h"
#include "worker/model/mlp_backend.h"
#include "worker/model/mlp_model.h"
#include "worker/model/model_backend.h"
#include "worker/model/model_spec.h"
#include "worker/model/synthetic_backend.h"

namespace recon {
namespace {

// Number of the CUDA device to use, -1 for the CPU.
absl::StatusOr<int> ParseDevice(const std::string& text) {
  if (text == "cpu") return -1;
  const absl::StatusOr<const CudaModule*> cuda = LoadCudaModule();
  const absl::StatusOr<int> counted =
      cuda.ok() ? (*cuda)->device_count() : absl::StatusOr<int>(cuda.status());
  const int devices = counted.ok() ? *counted : 0;
  if (text == "auto") return devices > 0 ? 0 : -1;
  int device = -1;
  absl::string_view rest = text;
  if (!absl::ConsumePrefix(&rest, "cuda:") || !absl::SimpleAtoi(rest, &device) || device < 0) {
    return absl::InvalidArgumentError(absl::StrCat("--device ", text, ": expected auto, cpu or cuda:N"));
  }
  if (device >= devices) {
    return absl::InvalidArgumentError(
        absl::StrCat("--device ", text, ": this machine has ", devices, " CUDA devices that recon can use",
                     counted.ok() ? "" : absl::StrCat(" (", counted.status().message(), ")")));
  }
  return device;
}

absl::StatusOr<std::unique_ptr<ModelBackend>> MakeMlp(const std::string& sizes, int device,
                                                      const ModelOptions& options) {
  RECON_ASSIGN_OR_RETURN(MlpModel model, ParseMlp(sizes));
  if (model.sizes.front() != options.features || model.sizes.back() < options.classes) {
    return absl::InvalidArgumentError(absl::StrCat(
        "--model ", options.model, " takes ", model.sizes.front(), " features and ", model.sizes.back(),
        " classes, the data has ", options.features, " and ", options.classes));
  }
  if (device >= 0) {
    RECON_ASSIGN_OR_RETURN(const CudaModule* cuda, LoadCudaModule());
    SetHostPinning(cuda->pinning);
    return cuda->make_mlp(std::move(model), device, options.precision);
  }
  return std::make_unique<MlpBackend>(std::move(model), options.threads, options.precision);
}

}  // namespace

absl::StatusOr<std::unique_ptr<ModelBackend>> MakeBackend(const ModelOptions& options) {
  RECON_ASSIGN_OR_RETURN(const int device, ParseDevice(options.device));
  absl::string_view name = options.model;
  if (absl::ConsumePrefix(&name, "mlp:")) return MakeMlp(std::string(name), device, options);
  RECON_ASSIGN_OR_RETURN(ModelSpec spec, ModelSpecOf(options.model));
  if (options.precision != Precision::kFp32) {
    return absl::InvalidArgumentError(absl::StrCat("--precision ", PrecisionName(options.precision),
                                                   ": --model ", options.model,
                                                   " simulates its computing, and has no precision"));
  }
  return std::make_unique<SyntheticBackend>(std::move(spec), options.seed);
}

}  // namespace recon
