#pragma once

#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace recon {

// Addresses as flags and messages have them: HOST:PORT, where HOST is a name, an IPv4 address or an IPv6
// address in brackets.

// Where a server listens, and where others look for one, if nobody says otherwise.
constexpr int kDefaultPort = 7070;

// Whether `address` reads so, with a port from 0 to 65535; InvalidArgument, naming `flag`.
absl::Status CheckAddress(const std::string& flag, const std::string& address);

// InvalidArgument if there is none.
absl::StatusOr<uint16_t> PortOf(const std::string& address);

// HOST:PORT of this machine for its own processes: 127.0.0.1, or [::1] where the machine has no IPv4. Looked
// up once a process.
std::string LoopbackAddress(int port);

// Whether the host is this machine only: localhost, or a number that says so.
bool IsLoopback(const std::string& address);

// Whether the host stands for all addresses of a machine: a listener's, where nobody can connect.
bool IsWildcard(const std::string& address);

// The number that a host's name stands for here, if only this machine can be reached by it (as Debian puts
// 127.0.1.1 beside a machine's own name); empty for other names, for localhost and for numbers. Asks the
// resolver: blocks.
std::string LoopbackBehindName(const std::string& address);

}  // namespace recon
