#include "common/rpc/certificates.h"

#include <openssl/err.h>
#include <openssl/pem.h>
#include <openssl/x509v3.h>

#include <algorithm>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "common/base/status_macros.h"
#include "common/rpc/x509.h"

namespace recon {
namespace {

using Certificates = std::vector<OwnedOpenssl<X509>>;

absl::Status Wrong(absl::string_view flag, const std::string& path, absl::string_view what) {
  return absl::InvalidArgumentError(absl::StrCat(flag, " ", path, what));
}

// Nobody is there to type a passphrase.
int NoPassphrase(char*, int, int, void*) { return -1; }

absl::Status CheckKey(const TlsFlags& flags, const TlsTexts& texts, X509* certificate) {
  const OwnedOpenssl<BIO> in(BIO_new_mem_buf(texts.key.data(), static_cast<int>(texts.key.size())));
  const OwnedOpenssl<EVP_PKEY> key(PEM_read_bio_PrivateKey(in.get(), nullptr, &NoPassphrase, nullptr));
  ERR_clear_error();
  if (key == nullptr) {
    const bool encrypted = absl::StrContains(texts.key, "ENCRYPTED");
    return Wrong("--tls-key", flags.key, encrypted ? ": has a passphrase: give one without" : ": has no key");
  }
  const bool belongs = X509_check_private_key(certificate, key.get()) == 1;
  ERR_clear_error();
  if (belongs) return absl::OkStatus();
  return Wrong("--tls-key", flags.key,
               absl::StrCat(": does not belong to the certificate in --tls-cert ", flags.cert));
}

// Why OpenSSL does not take the certificate as one of the CA.
absl::Status Untrusted(const TlsFlags& flags, X509_STORE_CTX* check, const Certificates& own,
                       const Certificates& cas, absl::Time now) {
  const int error = X509_STORE_CTX_get_error(check);
  const X509* at = X509_STORE_CTX_get_current_cert(check);
  const std::string invalid = at == nullptr ? "" : WhyNotValid(at, now);
  if (!invalid.empty()) {
    return Wrong("--tls-ca", flags.ca,
                 absl::StrCat(": the CA ", ShownName(X509_get_subject_name(at)), " ", invalid));
  }
  if (error == X509_V_ERR_INVALID_PURPOSE) {
    return Wrong("--tls-cert", flags.cert,
                 ": its extended key usage does not allow this end of a connection (servers need serverAuth, "
                 "all others clientAuth)");
  }
  if (error != X509_V_ERR_UNABLE_TO_GET_ISSUER_CERT_LOCALLY &&
      error != X509_V_ERR_UNABLE_TO_VERIFY_LEAF_SIGNATURE && error != X509_V_ERR_CERT_SIGNATURE_FAILURE &&
      error != X509_V_ERR_DEPTH_ZERO_SELF_SIGNED_CERT) {
    return Wrong("--tls-cert", flags.cert, absl::StrCat(": ", X509_verify_cert_error_string(error)));
  }
  const X509* last = own.back().get();
  return Wrong("--tls-cert", flags.cert,
               absl::StrCat(": is not of the CA in --tls-ca ", flags.ca, ": it was signed by ",
                            ShownName(X509_get_issuer_name(last)), ", the CA is ",
                            ShownName(X509_get_subject_name(cas.front().get())),
                            cas.size() > 1 ? absl::StrCat(" and ", cas.size() - 1, " more") : "",
                            error == X509_V_ERR_CERT_SIGNATURE_FAILURE ? " with another key" : ""));
}

absl::Status CheckTrust(const TlsFlags& flags, const Certificates& own, const Certificates& cas, TlsEnd end,
                        absl::Time now) {
  const OwnedOpenssl<X509_STORE> store(X509_STORE_new());
  // As gRPC has it: each certificate of the file is trusted, whether or not it signed itself.
  X509_STORE_set_flags(store.get(), X509_V_FLAG_PARTIAL_CHAIN | X509_V_FLAG_TRUSTED_FIRST);
  for (const auto& ca : cas) X509_STORE_add_cert(store.get(), ca.get());
  STACK_OF(X509)* between = sk_X509_new_null();
  for (size_t i = 1; i < own.size(); ++i) sk_X509_push(between, own[i].get());
  const OwnedOpenssl<X509_STORE_CTX> check(X509_STORE_CTX_new());
  X509_STORE_CTX_init(check.get(), store.get(), own.front().get(), between);
  X509_STORE_CTX_set_time(check.get(), 0, absl::ToTimeT(now));
  X509_STORE_CTX_set_purpose(check.get(),
                             end == TlsEnd::kServer ? X509_PURPOSE_SSL_SERVER : X509_PURPOSE_SSL_CLIENT);
  const bool trusted = X509_verify_cert(check.get()) == 1;
  const absl::Status status = trusted ? absl::OkStatus() : Untrusted(flags, check.get(), own, cas, now);
  ERR_clear_error();
  sk_X509_free(between);
  return status;
}

}  // namespace

absl::Status CheckCertificates(const TlsFlags& flags, const TlsTexts& texts, TlsEnd end, absl::Time now) {
  const absl::StatusOr<Certificates> own = ReadCertificates(texts.cert);
  if (!own.ok()) return Wrong("--tls-cert", flags.cert, own.status().message());
  const absl::StatusOr<Certificates> cas = ReadCertificates(texts.ca);
  if (!cas.ok()) return Wrong("--tls-ca", flags.ca, cas.status().message());
  RECON_RETURN_IF_ERROR(CheckKey(flags, texts, own->front().get()));
  for (const auto& certificate : *own) {
    const std::string invalid = WhyNotValid(certificate.get(), now);
    if (!invalid.empty()) return Wrong("--tls-cert", flags.cert, absl::StrCat(": ", invalid));
  }
  return CheckTrust(flags, *own, *cas, end, now);
}

}  // namespace recon
