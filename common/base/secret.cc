#include "common/base/secret.h"

#include <cstdint>

#include "common/base/hash.h"

namespace recon {

std::string DrawSecret(size_t bytes) {
  std::string secret;
  while (secret.size() < bytes) {
    const uint64_t drawn = RandomNonZero();
    secret.append(reinterpret_cast<const char*>(&drawn), sizeof(drawn));
  }
  secret.resize(bytes);
  return secret;
}

bool SameSecret(absl::string_view a, absl::string_view b) {
  if (a.size() != b.size()) return false;
  unsigned differ = 0;
  for (size_t i = 0; i < a.size(); ++i) differ |= static_cast<unsigned char>(a[i] ^ b[i]);
  return differ == 0;
}

}  // namespace recon
