#pragma once

#include <sys/socket.h>

#include <cstddef>
#include <cstdint>

#include "absl/container/flat_hash_map.h"
#include "absl/time/time.h"

namespace recon {

// Bounds how many connections an address may begin: so many at once, and so many a second from then on (a
// token bucket for each). An address is one of IPv4, or the 64 bits of IPv6 that a network has.
//
// Pure; one thread.
class AddressRates {
 public:
  // Of addresses that are known at once; all others share what one may have.
  static constexpr size_t kAddressesMax = 4096;

  AddressRates(double at_once, double per_second) : at_once_(at_once), per_second_(per_second) {}

  // Counts a connection of the address; false if it is one too many. `now` does not go back.
  bool Take(uint64_t address, absl::Time now);
  size_t addresses() const { return buckets_.size(); }

  // What Take() calls the address of a socket; those of neither family are one.
  static uint64_t KeyOf(const sockaddr_storage& peer);

 private:
  struct Bucket {
    double left;
    absl::Time since;
  };
  double LeftIn(const Bucket& bucket, absl::Time now) const;
  void ForgetFull(absl::Time now);

  const double at_once_, per_second_;
  absl::flat_hash_map<uint64_t, Bucket> buckets_;
};

}  // namespace recon
