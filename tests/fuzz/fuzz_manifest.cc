#include <cstdint>
#include <string>

#include "common/base/hash.h"
#include "common/snapshot/manifest.h"

// Any bytes as a manifest file, and as the payload of one whose framing is right.
extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string bytes(reinterpret_cast<const char*>(data), size);
  recon::DecodeManifest(bytes).IgnoreError();
  recon::Manifest manifest;
  if (manifest.ParseFromString(bytes)) recon::DecodeManifest(recon::EncodeManifest(manifest)).IgnoreError();
  recon::GenerationOfName(bytes).IgnoreError();
  return 0;
}
