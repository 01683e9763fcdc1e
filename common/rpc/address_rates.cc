#include "common/rpc/address_rates.h"

#include <netinet/in.h>

#include <algorithm>
#include <cstring>

namespace recon {
namespace {

constexpr uint64_t kAllOthers = UINT64_MAX;
// Of IPv4, also in IPv6: "::ffff:10.0.0.2" is 10.0.0.2. Networks that begin so (0:ffff::/32) are nobody's.
constexpr uint64_t kFour = uint64_t{0xffff} << 32;

}  // namespace

uint64_t AddressRates::KeyOf(const sockaddr_storage& peer) {
  uint32_t four = 0;
  if (peer.ss_family == AF_INET) {
    four = ntohl(reinterpret_cast<const sockaddr_in&>(peer).sin_addr.s_addr);
    return kFour | four;
  }
  if (peer.ss_family != AF_INET6) return kAllOthers;
  const in6_addr& six = reinterpret_cast<const sockaddr_in6&>(peer).sin6_addr;
  if (IN6_IS_ADDR_V4MAPPED(&six)) {
    std::memcpy(&four, six.s6_addr + 12, sizeof(four));
    return kFour | ntohl(four);
  }
  uint64_t network = 0;
  for (size_t i = 0; i < sizeof(network); ++i) network = network << 8 | six.s6_addr[i];
  return network;
}

double AddressRates::LeftIn(const Bucket& bucket, absl::Time now) const {
  return std::min(at_once_, bucket.left + per_second_ * absl::ToDoubleSeconds(now - bucket.since));
}

void AddressRates::ForgetFull(absl::Time now) {
  for (auto it = buckets_.begin(); it != buckets_.end();) {
    const bool full = LeftIn(it->second, now) >= at_once_;
    const auto here = it++;
    if (full) buckets_.erase(here);
  }
}

bool AddressRates::Take(uint64_t address, absl::Time now) {
  auto found = buckets_.find(address);
  if (found == buckets_.end()) {
    if (buckets_.size() >= kAddressesMax) ForgetFull(now);
    if (buckets_.size() >= kAddressesMax) address = kAllOthers;
    found = buckets_.try_emplace(address, Bucket{at_once_, now}).first;
  }
  Bucket& bucket = found->second;
  bucket = {LeftIn(bucket, now), now};
  if (bucket.left < 1) return false;
  bucket.left -= 1;
  return true;
}

}  // namespace recon
