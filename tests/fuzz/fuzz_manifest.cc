#include <cstdint>
#include <cstdlib>
#include <string>

#include "common/base/hash.h"
#include "common/snapshot/control_state.h"
#include "common/snapshot/manifest.h"

// Any bytes as a manifest file, as the payload of one whose framing is right, and as its control columns.
extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string bytes(reinterpret_cast<const char*>(data), size);
  recon::DecodeManifest(bytes).IgnoreError();
  recon::Manifest manifest;
  if (manifest.ParseFromString(bytes)) recon::DecodeManifest(recon::EncodeManifest(manifest)).IgnoreError();
  recon::GenerationOfName(bytes).IgnoreError();
  recon::ControlColumns columns;
  if (columns.ParseFromString(bytes)) {
    const auto state = recon::DecodeControl(columns, {});
    if (state.ok() != recon::CheckControl(columns).ok()) std::abort();
    // What was decoded comes back the same.
    if (state.ok()) {
      const auto again = recon::DecodeControl(recon::EncodeControl(*state), {});
      if (!again.ok() || again->completions.size() != state->completions.size()) std::abort();
    }
  }
  return 0;
}
