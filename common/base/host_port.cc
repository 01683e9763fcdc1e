#include "common/base/host_port.h"

#include <arpa/inet.h>
#include <netdb.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include <algorithm>

#include "absl/strings/ascii.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "common/base/limits.h"
#include "common/base/owned_fd.h"
#include "common/base/status_macros.h"

namespace recon {
namespace {

// Without the brackets of an IPv6 address.
std::string HostOf(const std::string& address) {
  absl::string_view host = absl::string_view(address).substr(0, address.rfind(':'));
  if (absl::ConsumePrefix(&host, "[")) absl::ConsumeSuffix(&host, "]");
  return std::string(host);
}

}  // namespace

absl::Status CheckAddress(const std::string& flag, const std::string& address) {
  const size_t colon = address.rfind(':');
  int port = -1;
  const bool well_formed = colon != std::string::npos && colon > 0 &&
                           address.size() <= limits::kNameBytesMax &&
                           std::all_of(address.begin(), address.end(), absl::ascii_isgraph) &&
                           absl::SimpleAtoi(address.substr(colon + 1), &port) && port >= 0 && port <= 65535;
  if (well_formed) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat(flag, " ", address.substr(0, limits::kNameBytesMax), ": expected HOST:PORT"));
}

absl::StatusOr<uint16_t> PortOf(const std::string& address) {
  RECON_RETURN_IF_ERROR(CheckAddress("address", address));
  int port = 0;
  (void)absl::SimpleAtoi(address.substr(address.rfind(':') + 1), &port);
  return static_cast<uint16_t>(port);
}

std::string LoopbackAddress(int port) {
  static const bool has_v4 = [] {
    const OwnedFd fd(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
    sockaddr_in any_port{};
    any_port.sin_family = AF_INET;
    any_port.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    return bind(fd.get(), reinterpret_cast<const sockaddr*>(&any_port), sizeof(any_port)) == 0;
  }();
  return absl::StrCat(has_v4 ? "127.0.0.1:" : "[::1]:", port);
}

bool IsLoopback(const std::string& address) {
  const std::string host = HostOf(address);
  in_addr v4;
  in6_addr v6;
  if (inet_pton(AF_INET, host.c_str(), &v4) == 1) return ntohl(v4.s_addr) >> 24 == 127;
  if (inet_pton(AF_INET6, host.c_str(), &v6) == 1) return IN6_IS_ADDR_LOOPBACK(&v6) != 0;
  return host == "localhost";
}

bool IsWildcard(const std::string& address) {
  const std::string host = HostOf(address);
  in_addr v4;
  in6_addr v6;
  if (inet_aton(host.c_str(), &v4) != 0) return v4.s_addr == 0;  // Takes 0, too, as those do who connect.
  if (inet_pton(AF_INET6, host.c_str(), &v6) == 1) return IN6_IS_ADDR_UNSPECIFIED(&v6) != 0;
  return host == "*";
}

std::string LoopbackBehindName(const std::string& address) {
  const std::string host = HostOf(address);
  in_addr v4;
  in6_addr v6;
  const bool number = inet_aton(host.c_str(), &v4) != 0 || inet_pton(AF_INET6, host.c_str(), &v6) == 1;
  if (number || IsLoopback(address) || IsWildcard(address)) return "";
  addrinfo hints{};
  hints.ai_socktype = SOCK_STREAM;
  addrinfo* found = nullptr;
  if (getaddrinfo(host.c_str(), nullptr, &hints, &found) != 0) return "";
  std::string loopback;
  bool others = false;
  for (const addrinfo* one = found; one != nullptr; one = one->ai_next) {
    char text[NI_MAXHOST];
    if (getnameinfo(one->ai_addr, one->ai_addrlen, text, sizeof(text), nullptr, 0, NI_NUMERICHOST) != 0)
      continue;
    const bool here =
        IsLoopback(one->ai_family == AF_INET6 ? absl::StrCat("[", text, "]:0") : absl::StrCat(text, ":0"));
    if (here) loopback = text;
    others = others || !here;
  }
  freeaddrinfo(found);
  return others ? "" : loopback;
}

}  // namespace recon
