#include <dlfcn.h>

#include <filesystem>
#include <string>
#include <system_error>

#include "absl/strings/str_cat.h"
#include "worker/cuda/cuda_module.h"

namespace recon {
namespace {

absl::StatusOr<const CudaModule*> Load() {
  // The driver first: without one there is no use in loading the rest.
  if (dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL) == nullptr) return absl::NotFoundError("no CUDA driver");
  std::error_code error;
  const std::filesystem::path program = std::filesystem::read_symlink("/proc/self/exe", error);
  const std::string path = program.parent_path() / kCudaModuleFile;
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
