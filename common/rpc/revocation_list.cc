#include "common/rpc/revocation_list.h"

#include <openssl/err.h>
#include <openssl/pem.h>

#include <algorithm>
#include <ctime>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/base/status_macros.h"

namespace recon {
namespace {

std::string DerOf(const X509_NAME* name) {
  const unsigned char* der = nullptr;
  size_t bytes = 0;
  if (X509_NAME_get0_der(name, &der, &bytes) != 1) return "";
  return {reinterpret_cast<const char*>(der), bytes};
}

std::string DerOf(const ASN1_INTEGER* serial) {
  unsigned char* der = nullptr;
  const int bytes = i2d_ASN1_INTEGER(serial, &der);
  if (bytes < 0) return "";
  std::string text(reinterpret_cast<const char*>(der), static_cast<size_t>(bytes));
  OPENSSL_free(der);
  return text;
}

// InfiniteFuture if it does not say.
absl::Time NextUpdateOf(const X509_CRL* crl) {
  const ASN1_TIME* next = X509_CRL_get0_nextUpdate(crl);
  std::tm broken_down{};
  if (next == nullptr || ASN1_TIME_to_tm(next, &broken_down) != 1) return absl::InfiniteFuture();
  return absl::FromTimeT(timegm(&broken_down));
}

absl::StatusOr<std::vector<OwnedOpenssl<X509_CRL>>> ReadCrls(absl::string_view pem) {
  const OwnedOpenssl<BIO> in(BIO_new_mem_buf(pem.data(), static_cast<int>(pem.size())));
  std::vector<OwnedOpenssl<X509_CRL>> crls;
  ERR_clear_error();
  while (X509_CRL* crl = PEM_read_bio_X509_CRL(in.get(), nullptr, nullptr, nullptr)) crls.emplace_back(crl);
  const unsigned long error = ERR_peek_last_error();  // NOLINT(google-runtime-int): OpenSSL's type.
  ERR_clear_error();
  if (ERR_GET_REASON(error) != PEM_R_NO_START_LINE) {
    return absl::InvalidArgumentError(absl::StrCat(": list ", crls.size() + 1, " of it is damaged"));
  }
  if (crls.empty()) return absl::InvalidArgumentError(": has no list of revoked certificates (X509 CRL)");
  return crls;
}

bool SignedBy(X509_CRL* crl, const X509* ca) {
  if (X509_NAME_cmp(X509_CRL_get_issuer(crl), X509_get_subject_name(ca)) != 0) return false;
  const bool verified = X509_CRL_verify(crl, X509_get0_pubkey(ca)) == 1;
  ERR_clear_error();
  return verified;
}

bool SignedBy(const X509* certificate, const X509* ca) {
  if (X509_NAME_cmp(X509_get_issuer_name(certificate), X509_get_subject_name(ca)) != 0) return false;
  const OwnedOpenssl<X509> copy(X509_dup(certificate));
  const bool verified = copy != nullptr && X509_verify(copy.get(), X509_get0_pubkey(ca)) == 1;
  ERR_clear_error();
  return verified;
}

}  // namespace

absl::StatusOr<RevocationList> RevocationList::Parse(absl::string_view pem, absl::string_view ca_pem) {
  RECON_ASSIGN_OR_RETURN(const auto crls, ReadCrls(pem));
  RECON_ASSIGN_OR_RETURN(auto cas, ReadCertificates(ca_pem));
  RevocationList list;
  for (const auto& crl : crls) {
    const X509_NAME* issuer = X509_CRL_get_issuer(crl.get());
    if (std::none_of(cas.begin(), cas.end(), [&](const auto& ca) { return SignedBy(crl.get(), ca.get()); })) {
      return absl::InvalidArgumentError(
          absl::StrCat(": the list of ", ShownName(issuer), " is not signed by a CA of --tls-ca"));
    }
    list.next_update_ = std::min(list.next_update_, NextUpdateOf(crl.get()));
    const STACK_OF(X509_REVOKED)* revoked = X509_CRL_get_REVOKED(crl.get());
    for (int i = 0; i < sk_X509_REVOKED_num(revoked); ++i) {
      list.revoked_.emplace(DerOf(issuer),
                            DerOf(X509_REVOKED_get0_serialNumber(sk_X509_REVOKED_value(revoked, i))));
    }
  }
  // Until no more follow: what a revoked CA has signed may be a CA itself.
  for (bool more = true; std::exchange(more, false);) {
    for (auto& ca : cas) {
      if (ca == nullptr || !list.Has(ca.get())) continue;
      list.revoked_cas_.push_back(std::move(ca));
      more = true;
    }
  }
  return list;
}

bool RevocationList::Has(const X509* certificate) const {
  return Names(certificate) || std::any_of(revoked_cas_.begin(), revoked_cas_.end(),
                                           [&](const auto& ca) { return SignedBy(certificate, ca.get()); });
}

bool RevocationList::Names(const X509* certificate) const {
  return revoked_.count(
             {DerOf(X509_get_issuer_name(certificate)), DerOf(X509_get0_serialNumber(certificate))}) > 0;
}

}  // namespace recon
