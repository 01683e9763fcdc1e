#include "common/ucx/ucx_address.h"

#include <netdb.h>
#include <netinet/in.h>

#include <cstring>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "common/base/status_macros.h"

namespace recon {
namespace {

// HOST:PORT, an IPv6 address in brackets.
absl::Status SplitHostPort(const std::string& host_port, std::string* host, int* port) {
  const size_t colon = host_port.rfind(':');
  const bool has_port = colon != std::string::npos && colon > 0 &&
                        absl::SimpleAtoi(host_port.substr(colon + 1), port) && *port >= 0 && *port <= 65535;
  *host = has_port ? host_port.substr(0, colon) : "";
  const bool brackets = has_port && host->size() > 2 && host->front() == '[' && host->back() == ']';
  if (brackets) *host = host->substr(1, host->size() - 2);
  if (!has_port || (!brackets && host->find_first_of(":[]") != std::string::npos)) {
    return absl::InvalidArgumentError(
        absl::StrCat("UCX: ", host_port, ": expected HOST:PORT, an IPv6 address in brackets"));
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status CheckUcxAddress(const std::string& host_port) {
  std::string host;
  int port = 0;
  return SplitHostPort(host_port, &host, &port);
}

absl::StatusOr<UcxAddress> UcxAddress::Resolve(const std::string& host_port) {
  std::string host;
  int port = 0;
  RECON_RETURN_IF_ERROR(SplitHostPort(host_port, &host, &port));
  addrinfo hints = {};
  hints.ai_socktype = SOCK_STREAM;
  addrinfo* found = nullptr;
  const int failure = getaddrinfo(host.c_str(), absl::StrCat(port).c_str(), &hints, &found);
  if (failure != 0) {
    return absl::UnavailableError(absl::StrCat("UCX: ", host_port, ": ", gai_strerror(failure)));
  }
  UcxAddress address;
  address.bytes = found->ai_addrlen;
  std::memcpy(&address.address, found->ai_addr, found->ai_addrlen);
  freeaddrinfo(found);
  return address;
}

bool UcxAddress::any() const {
  if (address.ss_family == AF_INET) {
    return reinterpret_cast<const sockaddr_in*>(&address)->sin_addr.s_addr == htonl(INADDR_ANY);
  }
  return address.ss_family == AF_INET6 &&
         IN6_IS_ADDR_UNSPECIFIED(&reinterpret_cast<const sockaddr_in6*>(&address)->sin6_addr);
}

}  // namespace recon
