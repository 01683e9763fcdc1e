#include "common/ucx/ucx_library.h"

#include <dlfcn.h>

#include "absl/strings/str_cat.h"

namespace recon {
namespace {

// Of the interface that the headers have.
constexpr char kLibrary[] = "libucp.so.0";

absl::StatusOr<const UcxLibrary*> Load() {
  void* library = dlopen(kLibrary, RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) return absl::FailedPreconditionError(absl::StrCat("cannot load UCX: ", dlerror()));
  static UcxLibrary functions;
#define RECON_UCX_FIND(name)                                                         \
  functions.name = reinterpret_cast<decltype(&::name)>(dlsym(library, #name));       \
  if (functions.name == nullptr) {                                                   \
    return absl::FailedPreconditionError(absl::StrCat(kLibrary, " has no ", #name)); \
  }
  RECON_UCX_FUNCTIONS(RECON_UCX_FIND)
#undef RECON_UCX_FIND
  return &functions;
}

}  // namespace

absl::StatusOr<const UcxLibrary*> LoadUcx() {
  static const auto& loaded = *new absl::StatusOr<const UcxLibrary*>(Load());
  return loaded;
}

}  // namespace recon
