#include "common/rpc/credentials.h"

#include <sys/stat.h>

#include <cerrno>
#include <cstring>
#include <fstream>
#include <map>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "common/base/clock.h"
#include "common/base/host_port.h"
#include "common/base/mutex.h"
#include "common/base/status_macros.h"
#include "grpcpp/security/tls_certificate_provider.h"
#include "grpcpp/security/tls_credentials_options.h"

namespace recon {
namespace {

// A file of all the CAs that a browser knows has a fourth of it.
constexpr size_t kPemBytesMax = 1 << 20;
// Between two looks whether the files are others.
constexpr unsigned kReloadSeconds = 2;

absl::StatusOr<std::string> ReadFile(const std::string& flag, const std::string& path) {
  const auto wrong = [&](absl::string_view what) {
    return absl::InvalidArgumentError(absl::StrCat(flag, " ", path, ": ", what));
  };
  errno = 0;
  std::ifstream in(path, std::ios::binary);
  if (!in) return wrong(absl::StrCat("cannot be read: ", strerror(errno)));
  std::string text(kPemBytesMax + 1, '\0');
  in.read(text.data(), static_cast<std::streamsize>(text.size()));
  text.resize(static_cast<size_t>(in.gcount()));
  if (in.bad()) return wrong(absl::StrCat("cannot be read: ", strerror(errno)));
  if (text.empty()) return wrong("is empty, or no file");
  if (text.size() > kPemBytesMax) return wrong(absl::StrCat("has more than ", kPemBytesMax, " bytes"));
  if (!absl::StrContains(text, "-----BEGIN ")) return wrong("is not a PEM file");
  return text;
}

// No TLS (all empty), or the three files.
absl::StatusOr<TlsTexts> ReadPem(const std::string& address, const TlsFlags& flags, TlsEnd end) {
  const int given = !flags.cert.empty() + !flags.key.empty() + !flags.ca.empty();
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
  RECON_ASSIGN_OR_RETURN(pem.cert, ReadFile("--tls-cert", flags.cert));
  RECON_ASSIGN_OR_RETURN(pem.key, ReadFile("--tls-key", flags.key));
  struct stat key {};
  if (stat(flags.key.c_str(), &key) == 0 && (key.st_mode & S_IROTH) != 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("--tls-key ", flags.key, ": all users of this machine can read it: chmod 600"));
  }
  RECON_ASSIGN_OR_RETURN(pem.ca, ReadFile("--tls-ca", flags.ca));
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

}  // namespace

absl::StatusOr<std::shared_ptr<grpc::ServerCredentials>> ServerCredentialsFor(const std::string& address,
                                                                              const TlsFlags& flags) {
  RECON_ASSIGN_OR_RETURN(const TlsTexts pem, ReadPem(address, flags, TlsEnd::kServer));
  if (pem.cert.empty()) return grpc::InsecureServerCredentials();
  grpc::experimental::TlsServerCredentialsOptions options(ProviderFor(flags));
  options.watch_root_certs();
  options.watch_identity_key_cert_pairs();
  options.set_cert_request_type(GRPC_SSL_REQUEST_AND_REQUIRE_CLIENT_CERTIFICATE_AND_VERIFY);
  return grpc::experimental::TlsServerCredentials(options);
}

absl::StatusOr<std::shared_ptr<grpc::ChannelCredentials>> ChannelCredentialsFor(const std::string& address,
                                                                                const TlsFlags& flags) {
  RECON_ASSIGN_OR_RETURN(const TlsTexts pem, ReadPem(address, flags, TlsEnd::kClient));
  if (pem.cert.empty()) return grpc::InsecureChannelCredentials();
  grpc::experimental::TlsChannelCredentialsOptions options;
  options.set_certificate_provider(ProviderFor(flags));
  options.watch_root_certs();
  options.watch_identity_key_cert_pairs();
  return grpc::experimental::TlsCredentials(options);
}

}  // namespace recon
