#include "common/rpc/tls_probe.h"

#include <arpa/inet.h>
#include <netdb.h>
#include <openssl/err.h>
#include <openssl/x509v3.h>
#include <sys/socket.h>

#include <cerrno>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/strip.h"
#include "common/base/clock.h"
#include "common/base/owned_fd.h"
#include "common/rpc/revocations.h"
#include "common/rpc/x509.h"

namespace recon {
namespace {

constexpr timeval kPatience = {2, 0};
// HTTP/2, which gRPC's servers insist on.
constexpr unsigned char kAlpn[] = {2, 'h', '2'};

absl::Status Wrong(const std::string& address, absl::string_view what) {
  return absl::InvalidArgumentError(absl::StrCat(address, ": ", what));
}

std::string HostOf(const std::string& address) {
  absl::string_view host = absl::string_view(address).substr(0, address.rfind(':'));
  if (absl::ConsumePrefix(&host, "[")) absl::ConsumeSuffix(&host, "]");
  return std::string(host);
}

bool IsNumber(const std::string& host) {
  in6_addr parsed;
  return inet_pton(AF_INET, host.c_str(), &parsed) == 1 || inet_pton(AF_INET6, host.c_str(), &parsed) == 1;
}

// A connected socket with short timeouts, or none.
OwnedFd Dial(const std::string& address) {
  addrinfo hints{};
  hints.ai_socktype = SOCK_STREAM;
  addrinfo* found = nullptr;
  const std::string port = address.substr(address.rfind(':') + 1);
  if (getaddrinfo(HostOf(address).c_str(), port.c_str(), &hints, &found) != 0) return OwnedFd();
  OwnedFd connected;
  for (const addrinfo* at = found; at != nullptr; at = at->ai_next) {
    OwnedFd fd(socket(at->ai_family, at->ai_socktype | SOCK_CLOEXEC, at->ai_protocol));
    if (fd.get() < 0) continue;
    setsockopt(fd.get(), SOL_SOCKET, SO_RCVTIMEO, &kPatience, sizeof(kPatience));
    setsockopt(fd.get(), SOL_SOCKET, SO_SNDTIMEO, &kPatience, sizeof(kPatience));
    if (connect(fd.get(), at->ai_addr, at->ai_addrlen) != 0) continue;
    connected = std::move(fd);
    break;
  }
  freeaddrinfo(found);
  return connected;
}

// OpenSSL's own would end the process by SIGPIPE when the other end has gone.
int SendQuietly(BIO* bio, const char* data, int bytes) {
  int fd = -1;
  BIO_get_fd(bio, &fd);
  BIO_clear_retry_flags(bio);
  return static_cast<int>(send(fd, data, static_cast<size_t>(bytes), MSG_NOSIGNAL));
}

BIO* SocketBio(int fd) {
  static BIO_METHOD* const method = [] {
    const BIO_METHOD* ordinary = BIO_s_socket();
    BIO_METHOD* quiet = BIO_meth_new(BIO_TYPE_SOCKET, "quiet socket");
    BIO_meth_set_write(quiet, &SendQuietly);
    BIO_meth_set_read(quiet, BIO_meth_get_read(ordinary));
    BIO_meth_set_ctrl(quiet, BIO_meth_get_ctrl(ordinary));
    BIO_meth_set_create(quiet, BIO_meth_get_create(ordinary));
    BIO_meth_set_destroy(quiet, BIO_meth_get_destroy(ordinary));
    return quiet;
  }();
  BIO* bio = BIO_new(method);
  BIO_set_fd(bio, fd, BIO_NOCLOSE);
  return bio;
}

OwnedOpenssl<SSL_CTX> MakeContext(const TlsFlags& flags) {
  OwnedOpenssl<SSL_CTX> context(SSL_CTX_new(TLS_client_method()));
  SSL_CTX_set_min_proto_version(context.get(), TLS1_2_VERSION);
  SSL_CTX_set_alpn_protos(context.get(), kAlpn, sizeof(kAlpn));
  // We look at the server's certificate ourselves, so as to see how it takes ours.
  SSL_CTX_set_verify(context.get(), SSL_VERIFY_NONE, nullptr);
  if (flags.cert.empty()) return context;
  X509_STORE_set_flags(SSL_CTX_get_cert_store(context.get()),
                       X509_V_FLAG_PARTIAL_CHAIN | X509_V_FLAG_TRUSTED_FIRST);
  SSL_CTX_use_certificate_chain_file(context.get(), flags.cert.c_str());
  SSL_CTX_use_PrivateKey_file(context.get(), flags.key.c_str(), SSL_FILETYPE_PEM);
  SSL_CTX_load_verify_locations(context.get(), flags.ca.c_str(), nullptr);
  return context;
}

// What the other end says as it refuses, by the last error of OpenSSL's: "unknown ca". Empty if it said
// nothing.
std::string AlertOf(unsigned long error) {  // NOLINT(google-runtime-int): OpenSSL's type.
  const int alert = ERR_GET_REASON(error) - SSL_AD_REASON_OFFSET;
  return ERR_GET_LIB(error) == ERR_LIB_SSL && alert > 0 && alert < 256 ? SSL_alert_desc_string_long(alert)
                                                                       : "";
}

// Of the certificates that the other end has shown, its own first.
bool AnyRevoked(Revocations* revocations, const SSL* ssl) {
  const STACK_OF(X509)* chain = SSL_get_peer_cert_chain(ssl);
  for (int i = 0; i < sk_X509_num(chain); ++i) {
    if (revocations->Has(sk_X509_value(chain, i))) return true;
  }
  return false;
}

absl::Status CheckServerCertificate(const std::string& address, const TlsFlags& flags, SSL* ssl) {
  const OwnedOpenssl<X509> certificate(SSL_get1_peer_certificate(ssl));
  if (certificate == nullptr) return absl::OkStatus();
  const std::string invalid = WhyNotValid(certificate.get(), Now());
  if (!invalid.empty()) return Wrong(address, absl::StrCat("the server's certificate ", invalid));
  const long verified = SSL_get_verify_result(ssl);  // NOLINT(google-runtime-int): OpenSSL's type.
  if (verified == X509_V_ERR_INVALID_PURPOSE) {
    return Wrong(address, "the server's certificate is not one for servers, by its extended key usage");
  }
  if (verified != X509_V_OK) {
    return Wrong(address,
                 absl::StrCat("the server's certificate is not of the CA in --tls-ca ", flags.ca,
                              ": it was signed by ", ShownName(X509_get_issuer_name(certificate.get())), " (",
                              X509_verify_cert_error_string(verified), ")"));
  }
  if (!flags.crl.empty()) {
    const absl::StatusOr<Revocations*> revocations = Revocations::Open(flags.crl, flags.ca);
    if (revocations.ok() && AnyRevoked(*revocations, ssl)) {
      return Wrong(address, absl::StrCat("the server's certificate is revoked, by --tls-crl ", flags.crl));
    }
  }
  const std::string host = HostOf(address);
  const bool named = IsNumber(host) ? X509_check_ip_asc(certificate.get(), host.c_str(), 0) == 1
                                    : X509_check_host(certificate.get(), host.c_str(), 0, 0, nullptr) == 1;
  if (named) return absl::OkStatus();
  return Wrong(address, absl::StrCat("the server's certificate is for ", ShownHosts(certificate.get()),
                                     ", not for ", host));
}

// The server has seen our certificate and hung up.
absl::Status Refused(const std::string& address, const TlsFlags& flags, SSL* ssl, const std::string& alert) {
  if (SSL_get0_peer_certificate(ssl) == nullptr) {
    return Wrong(address, absl::StrCat("the server refuses the TLS handshake: ", alert));
  }
  const std::string start =
      absl::StrCat("the server does not take the certificate in --tls-cert ", flags.cert);
  if (!alert.empty()) return Wrong(address, absl::StrCat(start, ": ", alert));
  const X509* own = SSL_get_certificate(ssl);
  const STACK_OF(X509_NAME)* cas = SSL_get0_peer_CA_list(ssl);
  std::vector<std::string> taken;
  for (int i = 0; cas != nullptr && i < sk_X509_NAME_num(cas); ++i) {
    const X509_NAME* ca = sk_X509_NAME_value(cas, i);
    if (X509_NAME_cmp(ca, X509_get_issuer_name(own)) == 0) {
      return Wrong(address, absl::StrCat(start, ": by the server's --tls-ca, or its clock, it is not good"));
    }
    taken.push_back(ShownName(ca));
  }
  return Wrong(address, absl::StrCat(start, ": it was signed by ", ShownName(X509_get_issuer_name(own)),
                                     ", the server takes those of ", absl::StrJoin(taken, ", ")));
}

// The state of a handshake that has failed, or been done.
absl::Status Judge(const std::string& address, const TlsFlags& flags, SSL* ssl, bool done) {
  const unsigned long error = ERR_peek_last_error();  // NOLINT(google-runtime-int): OpenSSL's type.
  const bool answered = SSL_get_current_cipher(ssl) != nullptr || !AlertOf(error).empty();
  if (flags.cert.empty()) {
    if (!answered) return absl::OkStatus();
    return Wrong(address, "the server wants TLS: give --tls-cert, --tls-key and --tls-ca");
  }
  if (!answered) {
    if (ERR_GET_REASON(error) != SSL_R_WRONG_VERSION_NUMBER) return absl::OkStatus();
    return Wrong(address, "the server does not speak TLS: leave out --tls-cert, --tls-key and --tls-ca");
  }
  const absl::Status theirs = CheckServerCertificate(address, flags, ssl);
  if (!theirs.ok()) return theirs;
  if (!done) return Refused(address, flags, ssl, AlertOf(error));
  // With TLS 1.3 the server looks at our certificate only now. If it takes it, its first frame comes at once.
  char byte = 0;
  errno = 0;
  if (SSL_read(ssl, &byte, 1) > 0) return absl::OkStatus();
  if (errno == EAGAIN || errno == EWOULDBLOCK) return absl::OkStatus();  // It says nothing.
  return Refused(address, flags, ssl, AlertOf(ERR_peek_last_error()));
}

}  // namespace

absl::Status ProbeTls(const std::string& address, const TlsFlags& flags) {
  const OwnedFd fd = Dial(address);
  if (fd.get() < 0) return absl::OkStatus();
  const OwnedOpenssl<SSL_CTX> context = MakeContext(flags);
  const OwnedOpenssl<SSL> ssl(SSL_new(context.get()));
  BIO* bio = SocketBio(fd.get());
  SSL_set_bio(ssl.get(), bio, bio);
  const std::string host = HostOf(address);
  if (!IsNumber(host)) SSL_set_tlsext_host_name(ssl.get(), host.c_str());
  ERR_clear_error();
  errno = 0;
  const bool done = SSL_connect(ssl.get()) == 1;
  const bool silent = !done && (errno == EAGAIN || errno == EWOULDBLOCK);
  const absl::Status status = silent ? absl::OkStatus() : Judge(address, flags, ssl.get(), done);
  ERR_clear_error();
  return status;
}

}  // namespace recon
