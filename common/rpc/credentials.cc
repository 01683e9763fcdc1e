#include "common/rpc/credentials.h"

#include <sys/stat.h>

#include <functional>
#include <map>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/base/clock.h"
#include "common/base/host_port.h"
#include "common/base/mutex.h"
#include "common/base/status_macros.h"
#include "common/rpc/pem_file.h"
#include "common/rpc/revocations.h"
#include "common/rpc/x509.h"
#include "grpcpp/security/tls_certificate_provider.h"
#include "grpcpp/security/tls_certificate_verifier.h"
#include "grpcpp/security/tls_credentials_options.h"

namespace recon {
namespace {

// Between two looks whether the files are others.
constexpr unsigned kReloadSeconds = 2;

// No TLS (all empty), or the three files.
absl::StatusOr<TlsTexts> ReadPem(const std::string& address, const TlsFlags& flags, TlsEnd end) {
  const int given = !flags.cert.empty() + !flags.key.empty() + !flags.ca.empty();
  if (given == 0 && !flags.crl.empty()) {
    return absl::InvalidArgumentError(
        "--tls-crl is for certificates: give --tls-cert, --tls-key and --tls-ca");
  }
  if (given == 0) {
    if (!IsLoopback(address) && !flags.insecure) {
      return absl::InvalidArgumentError(
          absl::StrCat(address, " is not loopback: give --tls-cert, --tls-key and --tls-ca, or --insecure"));
    }
    return TlsTexts{};
  }
  if (given != 3) {
    return absl::InvalidArgumentError("--tls-cert, --tls-key and --tls-ca go together: one is missing");
  }
  if (flags.insecure) return absl::InvalidArgumentError("--insecure contradicts --tls-cert");
  TlsTexts pem;
  RECON_ASSIGN_OR_RETURN(pem.cert, ReadPemFile("--tls-cert", flags.cert));
  RECON_ASSIGN_OR_RETURN(pem.key, ReadPemFile("--tls-key", flags.key));
  struct stat key {};
  if (stat(flags.key.c_str(), &key) == 0 && (key.st_mode & S_IROTH) != 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("--tls-key ", flags.key, ": all users of this machine can read it: chmod 600"));
  }
  RECON_ASSIGN_OR_RETURN(pem.ca, ReadPemFile("--tls-ca", flags.ca));
  RECON_RETURN_IF_ERROR(CheckCertificates(flags, pem, end, Now()));
  return pem;
}

// Reads the files again, every two seconds: connections that begin later use what is there then. One for all
// connections of a process, as each has a thread; it lasts as long as the process.
std::shared_ptr<grpc::experimental::FileWatcherCertificateProvider> ProviderFor(const TlsFlags& flags) {
  static Mutex* const mu = new Mutex;
  static auto* const providers =
      new std::map<std::vector<std::string>,
                   std::shared_ptr<grpc::experimental::FileWatcherCertificateProvider>>;
  MutexLock lock(mu);
  auto& provider = (*providers)[{flags.key, flags.cert, flags.ca}];
  if (provider == nullptr) {
    provider = std::make_shared<grpc::experimental::FileWatcherCertificateProvider>(flags.key, flags.cert,
                                                                                    flags.ca, kReloadSeconds);
  }
  return provider;
}

// Takes an other end whose certificate is not revoked; and, where that is a server, names its host, as gRPC's
// own does.
class NotRevoked final : public grpc::experimental::ExternalCertificateVerifier {
 public:
  NotRevoked(Revocations* revocations, TlsEnd other) : other_(other), revocations_(revocations) {}

  bool Verify(grpc::experimental::TlsCustomVerificationCheckRequest* request,
              std::function<void(grpc::Status)> callback, grpc::Status* status) override {
    *status = grpc::Status::OK;
    if (other_ == TlsEnd::kServer && !host_.Verify(request, std::move(callback), status)) {
      *status = grpc::Status(grpc::StatusCode::INTERNAL, "the host's name is not checked at once");
    }
    if (!status->ok()) return true;
    const std::string who = other_ == TlsEnd::kServer ? "the server" : "the client";
    const grpc::string_ref shown = request->peer_cert(), chain = request->peer_cert_full_chain();
    const auto certificates = ReadCertificates({shown.data(), shown.size()});
    if (!certificates.ok()) {
      *status = grpc::Status(grpc::StatusCode::UNAUTHENTICATED, who + " shows no certificate");
    } else if (revocations_->Has(certificates->front().get()) ||
               revocations_->HasAnyOf({chain.data(), chain.size()})) {
      *status = grpc::Status(grpc::StatusCode::UNAUTHENTICATED, who + "'s certificate is revoked");
    }
    return true;
  }
  void Cancel(grpc::experimental::TlsCustomVerificationCheckRequest*) override {}

 private:
  const TlsEnd other_;
  grpc::experimental::HostNameCertificateVerifier host_;
  Revocations* const revocations_;
};

// What `flags` say of revoked certificates; null: nothing.
absl::StatusOr<Revocations*> RevocationsOf(const TlsFlags& flags) {
  if (flags.crl.empty()) return nullptr;
  return Revocations::Open(flags.crl, flags.ca);
}

}  // namespace

absl::StatusOr<std::shared_ptr<grpc::ServerCredentials>> ServerCredentialsFor(const std::string& address,
                                                                              const TlsFlags& flags,
                                                                              RevokedClients revoked) {
  RECON_ASSIGN_OR_RETURN(const TlsTexts pem, ReadPem(address, flags, TlsEnd::kServer));
  if (pem.cert.empty()) return grpc::InsecureServerCredentials();
  Revocations* revocations = nullptr;
  if (revoked == RevokedClients::kRefused) {
    RECON_ASSIGN_OR_RETURN(revocations, RevocationsOf(flags));
  }
  // From here on nothing fails: gRPC frees options with the credentials that are made of them only.
  grpc::experimental::TlsServerCredentialsOptions options(ProviderFor(flags));
  options.watch_root_certs();
  options.watch_identity_key_cert_pairs();
  options.set_cert_request_type(GRPC_SSL_REQUEST_AND_REQUIRE_CLIENT_CERTIFICATE_AND_VERIFY);
  if (revocations != nullptr) {
    options.set_certificate_verifier(
        grpc::experimental::ExternalCertificateVerifier::Create<NotRevoked>(revocations, TlsEnd::kClient));
  }
  return grpc::experimental::TlsServerCredentials(options);
}

absl::StatusOr<std::shared_ptr<grpc::ChannelCredentials>> ChannelCredentialsFor(const std::string& address,
                                                                                const TlsFlags& flags) {
  RECON_ASSIGN_OR_RETURN(const TlsTexts pem, ReadPem(address, flags, TlsEnd::kClient));
  if (pem.cert.empty()) return grpc::InsecureChannelCredentials();
  RECON_ASSIGN_OR_RETURN(Revocations* const revocations, RevocationsOf(flags));
  grpc::experimental::TlsChannelCredentialsOptions options;
  options.set_certificate_provider(ProviderFor(flags));
  options.watch_root_certs();
  options.watch_identity_key_cert_pairs();
  if (revocations != nullptr) {
    options.set_certificate_verifier(
        grpc::experimental::ExternalCertificateVerifier::Create<NotRevoked>(revocations, TlsEnd::kServer));
  }
  return grpc::experimental::TlsCredentials(options);
}

}  // namespace recon
