#include "common/collective/ticket.h"

#include <openssl/evp.h>
#include <openssl/hmac.h>

#include <cstdint>

#include "common/base/check.h"
#include "common/base/secret.h"

namespace recon {
namespace {

void AppendNumber(uint64_t number, std::string* out) {
  for (int shift = 0; shift < 64; shift += 8) out->push_back(static_cast<char>(number >> shift & 0xff));
}

}  // namespace

std::string TicketFor(absl::string_view key, const CallHeader& place) {
  std::string named;
  for (const uint64_t number : {place.set, place.epoch, uint64_t{place.place}, uint64_t{place.members}}) {
    AppendNumber(number, &named);
  }
  unsigned char digest[EVP_MAX_MD_SIZE];
  unsigned size = 0;
  const unsigned char* made =
      HMAC(EVP_sha256(), key.data(), static_cast<int>(key.size()),
           reinterpret_cast<const unsigned char*>(named.data()), named.size(), digest, &size);
  RECON_CHECK(made != nullptr, "OpenSSL has no SHA-256");
  return {reinterpret_cast<const char*>(digest), size};
}

bool IsTicketFor(absl::string_view shown, absl::string_view key, const CallHeader& place) {
  return SameSecret(shown, TicketFor(key, place));
}

}  // namespace recon
