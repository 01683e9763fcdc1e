#include "common/rpc/address_rates.h"

#include <arpa/inet.h>
#include <netinet/in.h>

#include <string>

#include "catch2/catch.hpp"

namespace recon {
namespace {

const absl::Time kStart = absl::UnixEpoch() + absl::Hours(1);

uint64_t KeyOf(const std::string& host) {
  sockaddr_storage address{};
  auto& four = reinterpret_cast<sockaddr_in&>(address);
  auto& six = reinterpret_cast<sockaddr_in6&>(address);
  if (inet_pton(AF_INET, host.c_str(), &four.sin_addr) == 1) {
    address.ss_family = AF_INET;
  } else {
    REQUIRE(inet_pton(AF_INET6, host.c_str(), &six.sin6_addr) == 1);
    address.ss_family = AF_INET6;
  }
  return AddressRates::KeyOf(address);
}

int Taken(AddressRates* rates, uint64_t address, absl::Time now, int tries) {
  int taken = 0;
  for (int i = 0; i < tries; ++i) taken += rates->Take(address, now) ? 1 : 0;
  return taken;
}

}  // namespace

TEST_CASE("an address begins so many connections at once, and so many a second then", "[connections]") {
  AddressRates rates(10, 4);
  CHECK(Taken(&rates, 1, kStart, 100) == 10);
  CHECK(Taken(&rates, 2, kStart, 100) == 10);  // Another one is not concerned.
  CHECK(Taken(&rates, 1, kStart + absl::Milliseconds(200), 100) == 0);
  CHECK(Taken(&rates, 1, kStart + absl::Milliseconds(250), 100) == 1);
  CHECK(Taken(&rates, 1, kStart + absl::Seconds(1), 100) == 3);
  CHECK(Taken(&rates, 1, kStart + absl::Hours(1), 100) == 10);  // No more than that is saved.
}

TEST_CASE("who comes from more addresses than are kept apart has what one of them has", "[connections]") {
  AddressRates rates(2, 1);
  for (uint64_t i = 1; i <= AddressRates::kAddressesMax; ++i) REQUIRE(Taken(&rates, i, kStart, 3) == 2);
  int taken = 0;
  for (uint64_t i = 1; i <= 1000; ++i) taken += Taken(&rates, 1'000'000 + i, kStart, 3);
  CHECK(taken == 2);
  CHECK(rates.addresses() == AddressRates::kAddressesMax + 1);
  // Those who have long begun none are forgotten.
  CHECK(Taken(&rates, 2'000'000, kStart + absl::Seconds(2), 3) == 2);
  CHECK(rates.addresses() == 1);
}

TEST_CASE("an address is one of IPv4, or a network of IPv6", "[connections]") {
  CHECK(KeyOf("10.0.0.2") == KeyOf("::ffff:10.0.0.2"));
  CHECK(KeyOf("10.0.0.2") != KeyOf("10.0.0.3"));
  CHECK(KeyOf("2001:db8::1") == KeyOf("2001:db8::2:1"));
  CHECK(KeyOf("2001:db8::1") != KeyOf("2001:db8:0:1::1"));
  // Whose bytes from behind would be those of an address of IPv4.
  CHECK(KeyOf("2001:db8:ffff::1") != KeyOf("184.13.1.32"));
  CHECK(KeyOf("10.0.0.2") != 0);
}

}  // namespace recon
