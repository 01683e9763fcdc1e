#pragma once

#include <sys/socket.h>

#include <string>

#include "absl/status/statusor.h"

namespace recon {

// InvalidArgument if it is not HOST:PORT; an IPv6 address is in brackets.
absl::Status CheckUcxAddress(const std::string& host_port);

// Where a listener listens, or whom somebody connects to.
struct UcxAddress {
  // Looks the name up, which may take a while. Unavailable if it is not known; else CheckUcxAddress()'s
  // errors.
  static absl::StatusOr<UcxAddress> Resolve(const std::string& host_port);

  const sockaddr* get() const { return reinterpret_cast<const sockaddr*>(&address); }
  // All addresses of the machine.
  bool any() const;

  sockaddr_storage address = {};
  socklen_t bytes = 0;
};

}  // namespace recon
