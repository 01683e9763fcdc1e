#pragma once

#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "common/rpc/certificates.h"
#include "grpcpp/security/credentials.h"
#include "grpcpp/security/server_credentials.h"

namespace recon {

// Whether a server takes connections of clients whose certificate is in `crl`: either no handshake with them
// succeeds, or its services deny what they ask for (Access), and say why.
enum class RevokedClients { kRefused, kForServices };

// Mutual TLS if the files are given: each side must show a certificate of the CA. Plain text on loopback
// or with `insecure`. InvalidArgument, naming the flag, in every other case, for unreadable files and for
// certificates that do not fit together (CheckCertificates). The files are read again when they change: new
// connections use what is in them then, and those that there are go on. A client does not take a server whose
// certificate is in `crl`.
absl::StatusOr<std::shared_ptr<grpc::ServerCredentials>> ServerCredentialsFor(
    const std::string& address, const TlsFlags& flags, RevokedClients revoked = RevokedClients::kRefused);
absl::StatusOr<std::shared_ptr<grpc::ChannelCredentials>> ChannelCredentialsFor(const std::string& address,
                                                                                const TlsFlags& flags);

}  // namespace recon
