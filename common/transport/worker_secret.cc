#include "common/transport/worker_secret.h"

#include <openssl/sha.h>

#include <cstdint>
#include <cstring>

#include "absl/strings/str_cat.h"
#include "common/base/secret.h"

namespace recon {

WorkerSecret WorkerSecret::Draw() { return *FromBytes(DrawSecret(kBytes)); }

absl::StatusOr<WorkerSecret> WorkerSecret::FromBytes(absl::string_view bytes) {
  if (bytes.size() != kBytes) {
    return absl::InvalidArgumentError(
        absl::StrCat("a worker's secret of ", bytes.size(), " bytes, expected ", kBytes));
  }
  WorkerSecret secret;
  memcpy(secret.bytes_.data(), bytes.data(), kBytes);
  return secret;
}

Incarnation WorkerSecret::incarnation() const {
  unsigned char digest[SHA256_DIGEST_LENGTH];
  SHA256(reinterpret_cast<const unsigned char*>(bytes_.data()), kBytes, digest);
  uint64_t value = 0;
  for (size_t i = 0; i < sizeof(value); ++i) value = value << 8 | digest[i];
  return Incarnation(value == 0 ? 1 : value);
}

}  // namespace recon
