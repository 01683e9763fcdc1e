#pragma once

#include <string>

#include "absl/status/status.h"
#include "common/rpc/certificates.h"

namespace recon {

// Why no connection to `address` comes about, as far as a handshake of our own can tell: gRPC says "Socket
// closed" of a certificate that the other end has refused. InvalidArgument, which names the address and the
// cause, if certificates or the use of TLS do not fit; OK if they do or nothing can be told, as when nobody
// listens. A server that ends at this very moment looks as if it had refused the certificate: ask twice.
//
// Blocks: up to two seconds for each of connecting, the handshake and the server's first bytes. Thread-safe.
// Sends nothing but the handshake.
absl::Status ProbeTls(const std::string& address, const TlsFlags& flags);

}  // namespace recon
