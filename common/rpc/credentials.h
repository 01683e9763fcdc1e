#pragma once

#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "grpcpp/security/credentials.h"
#include "grpcpp/security/server_credentials.h"

namespace recon {

// How the processes of a job trust each other: the flags --tls-cert, --tls-key, --tls-ca and
// --insecure of every program.
struct TlsFlags {
  std::string cert;  // PEM files. All three or none.
  std::string key;
  std::string ca;
  // Plain text on an address other than loopback.
  bool insecure = false;
};

// Mutual TLS if the files are given: each side must show a certificate of the CA. Plain text on loopback
// or with `insecure`. InvalidArgument, naming the flag, in every other case and for unreadable files.
absl::StatusOr<std::shared_ptr<grpc::ServerCredentials>> ServerCredentialsFor(const std::string& address,
                                                                              const TlsFlags& flags);
absl::StatusOr<std::shared_ptr<grpc::ChannelCredentials>> ChannelCredentialsFor(const std::string& address,
                                                                                const TlsFlags& flags);

}  // namespace recon
