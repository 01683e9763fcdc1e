#include <dlfcn.h>

#include <string>

#include "absl/strings/str_cat.h"
#include "common/base/process.h"
#include "worker/cuda/cuda_module.h"

namespace recon {
namespace {

absl::StatusOr<const CudaModule*> Load() {
  // The driver first: without one there is no use in loading the rest.
  if (dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL) == nullptr) return absl::NotFoundError("no CUDA driver");
  const std::string path = absl::StrCat(ProgramDirectory(), "/", kCudaModuleFile);
  void* module = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (module == nullptr) return absl::NotFoundError(absl::StrCat("cannot load ", path, ": ", dlerror()));
  const void* symbol = dlsym(module, kCudaModuleSymbol);
  if (symbol == nullptr) return absl::NotFoundError(absl::StrCat(path, " has no ", kCudaModuleSymbol));
  return static_cast<const CudaModule*>(symbol);
}

}  // namespace

absl::StatusOr<const CudaModule*> LoadCudaModule() {
  static const auto& loaded = *new absl::StatusOr<const CudaModule*>(Load());
  return loaded;
}

}  // namespace recon
