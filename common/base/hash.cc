#include "common/base/hash.h"

#include <xxhash.h>
#if defined(RECON_XXH_DISPATCH)
#include <xxh_x86dispatch.h>  // Makes XXH3's names those of the functions that look at the machine.
#endif

#include <random>

#include "absl/strings/escaping.h"

namespace recon {

uint64_t Hash64(const void* data, size_t size) { return XXH3_64bits(data, size); }

StreamingHash64::StreamingHash64() : state_(XXH3_createState()) { Reset(); }
StreamingHash64::~StreamingHash64() { XXH3_freeState(static_cast<XXH3_state_t*>(state_)); }
void StreamingHash64::Reset() { XXH3_64bits_reset(static_cast<XXH3_state_t*>(state_)); }
void StreamingHash64::Update(const void* data, size_t size) {
  XXH3_64bits_update(static_cast<XXH3_state_t*>(state_), data, size);
}
uint64_t StreamingHash64::Digest() const {
  return XXH3_64bits_digest(static_cast<const XXH3_state_t*>(state_));
}

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
