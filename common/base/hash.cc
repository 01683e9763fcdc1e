#include "common/base/hash.h"

#include <xxhash.h>

#include <random>

#include "absl/strings/escaping.h"

namespace recon {

uint64_t Hash64(const void* data, size_t size) { return XXH3_64bits(data, size); }

std::string Hash128(const void* data, size_t size) {
  XXH128_canonical_t canonical;
  XXH128_canonicalFromHash(&canonical, XXH3_128bits(data, size));
  return std::string(reinterpret_cast<const char*>(canonical.digest), sizeof(canonical.digest));
}

std::string ToHex(absl::string_view bytes) { return absl::BytesToHexString(bytes); }

uint64_t RandomNonZero() {
  std::random_device device;
  uint64_t value = 0;
  while (value == 0) value = (uint64_t{device()} << 32) | device();
  return value;
}

}  // namespace recon
