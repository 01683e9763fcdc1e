#pragma once

#include <openssl/ssl.h>
#include <openssl/x509.h>
#include <openssl/x509v3.h>

#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"

namespace recon {

// OpenSSL's objects with owners, and what messages say of them.

struct FreeOpenssl {
  void operator()(X509* it) const { X509_free(it); }
  void operator()(X509_CRL* it) const { X509_CRL_free(it); }
  void operator()(EVP_PKEY* it) const { EVP_PKEY_free(it); }
  void operator()(BIO* it) const { BIO_free(it); }
  void operator()(X509_STORE* it) const { X509_STORE_free(it); }
  void operator()(X509_STORE_CTX* it) const { X509_STORE_CTX_free(it); }
  void operator()(SSL_CTX* it) const { SSL_CTX_free(it); }
  void operator()(SSL* it) const { SSL_free(it); }
  void operator()(GENERAL_NAMES* it) const { GENERAL_NAMES_free(it); }
};
template <typename T>
using OwnedOpenssl = std::unique_ptr<T, FreeOpenssl>;

// All certificates of a text in PEM, in their order. InvalidArgument, whose text goes on after the name of a
// file, if there is none or one cannot be read.
absl::StatusOr<std::vector<OwnedOpenssl<X509>>> ReadCertificates(absl::string_view pem);

// The common name, or all of the name if it has none.
std::string ShownName(const X509_NAME* name);

// "2026-03-01 12:00:05 UTC".
std::string ShownTime(const ASN1_TIME* time);

// The hosts that a certificate is for: "localhost, 127.0.0.1"; "no host" if it names none.
std::string ShownHosts(const X509* certificate);

// When it expires; InfinitePast if that cannot be read.
absl::Time ExpiryOf(const X509* certificate);

// Its common name; empty if it has none, several, or one that is no text. For decisions: ShownName() is for
// people.
std::string CommonNameOf(const X509* certificate);

// Its organisational units, and those of its subject alternative names that are URIs.
std::vector<std::string> UnitsOf(const X509* certificate);
std::vector<std::string> UrisOf(const X509* certificate);

// "has expired on ..." or "is not valid before ..."; empty if it is valid at `now`.
std::string WhyNotValid(const X509* certificate, absl::Time now);

}  // namespace recon
