#include "common/rpc/credentials.h"

#include <fstream>
#include <sstream>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "common/base/host_port.h"
#include "common/base/status_macros.h"

namespace recon {
namespace {

struct Pem {
  std::string cert, key, ca;
};

absl::StatusOr<std::string> ReadFile(const std::string& flag, const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  std::ostringstream text;
  text << in.rdbuf();
  if (!in || text.str().empty()) {
    return absl::InvalidArgumentError(absl::StrCat(flag, " ", path, ": cannot be read or is empty"));
  }
  if (!absl::StrContains(text.str(), "-----BEGIN ")) {
    return absl::InvalidArgumentError(absl::StrCat(flag, " ", path, ": is not a PEM file"));
  }
  return text.str();
}

// No TLS (all empty), or the three files.
absl::StatusOr<Pem> ReadPem(const std::string& address, const TlsFlags& flags) {
  const int given = !flags.cert.empty() + !flags.key.empty() + !flags.ca.empty();
  if (given == 0) {
    if (!IsLoopback(address) && !flags.insecure) {
      return absl::InvalidArgumentError(
          absl::StrCat(address, " is not loopback: give --tls-cert, --tls-key and --tls-ca, or --insecure"));
    }
    return Pem{};
  }
  if (given != 3) {
    return absl::InvalidArgumentError("--tls-cert, --tls-key and --tls-ca go together: one is missing");
  }
  if (flags.insecure) return absl::InvalidArgumentError("--insecure contradicts --tls-cert");
  Pem pem;
  RECON_ASSIGN_OR_RETURN(pem.cert, ReadFile("--tls-cert", flags.cert));
  RECON_ASSIGN_OR_RETURN(pem.key, ReadFile("--tls-key", flags.key));
  RECON_ASSIGN_OR_RETURN(pem.ca, ReadFile("--tls-ca", flags.ca));
  return pem;
}

}  // namespace

absl::StatusOr<std::shared_ptr<grpc::ServerCredentials>> ServerCredentialsFor(const std::string& address,
                                                                              const TlsFlags& flags) {
  RECON_ASSIGN_OR_RETURN(const Pem pem, ReadPem(address, flags));
  if (pem.cert.empty()) return grpc::InsecureServerCredentials();
  grpc::SslServerCredentialsOptions options(GRPC_SSL_REQUEST_AND_REQUIRE_CLIENT_CERTIFICATE_AND_VERIFY);
  options.pem_root_certs = pem.ca;
  options.pem_key_cert_pairs.push_back({pem.key, pem.cert});
  return grpc::SslServerCredentials(options);
}

absl::StatusOr<std::shared_ptr<grpc::ChannelCredentials>> ChannelCredentialsFor(const std::string& address,
                                                                                const TlsFlags& flags) {
  RECON_ASSIGN_OR_RETURN(const Pem pem, ReadPem(address, flags));
  if (pem.cert.empty()) return grpc::InsecureChannelCredentials();
  return grpc::SslCredentials({pem.ca, pem.key, pem.cert});
}

}  // namespace recon
