#include "common/rpc/x509.h"

#include <arpa/inet.h>
#include <openssl/err.h>
#include <openssl/pem.h>
#include <openssl/x509v3.h>

#include <ctime>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"

namespace recon {
namespace {

std::string ShownAddress(const ASN1_OCTET_STRING* address) {
  const int bytes = ASN1_STRING_length(address);
  char text[INET6_ADDRSTRLEN] = "";
  if (bytes != 4 && bytes != 16) return "";
  inet_ntop(bytes == 4 ? AF_INET : AF_INET6, ASN1_STRING_get0_data(address), text, sizeof(text));
  return text;
}

// The subject's fields of that kind, but for those with a NUL in them, where some would end them.
std::vector<std::string> TextsOf(const X509* certificate, int kind) {
  std::vector<std::string> texts;
  const X509_NAME* name = X509_get_subject_name(certificate);
  int at = -1;
  while ((at = X509_NAME_get_index_by_NID(name, kind, at)) >= 0) {
    unsigned char* text = nullptr;
    const int bytes = ASN1_STRING_to_UTF8(&text, X509_NAME_ENTRY_get_data(X509_NAME_get_entry(name, at)));
    if (bytes < 0) continue;
    std::string field(reinterpret_cast<const char*>(text), static_cast<size_t>(bytes));
    OPENSSL_free(text);
    if (field.find('\0') == std::string::npos) texts.push_back(std::move(field));
  }
  return texts;
}

}  // namespace

absl::StatusOr<std::vector<OwnedOpenssl<X509>>> ReadCertificates(absl::string_view pem) {
  const OwnedOpenssl<BIO> in(BIO_new_mem_buf(pem.data(), static_cast<int>(pem.size())));
  std::vector<OwnedOpenssl<X509>> certificates;
  ERR_clear_error();
  while (X509* certificate = PEM_read_bio_X509(in.get(), nullptr, nullptr, nullptr)) {
    certificates.emplace_back(certificate);
  }
  const unsigned long error = ERR_peek_last_error();  // NOLINT(google-runtime-int): OpenSSL's type.
  ERR_clear_error();
  if (ERR_GET_REASON(error) != PEM_R_NO_START_LINE) {
    return absl::InvalidArgumentError(
        absl::StrCat(": certificate ", certificates.size() + 1, " of it is damaged"));
  }
  if (certificates.empty()) return absl::InvalidArgumentError(": has no certificate");
  return certificates;
}

std::string ShownName(const X509_NAME* name) {
  char text[256] = "";
  if (X509_NAME_get_text_by_NID(const_cast<X509_NAME*>(name), NID_commonName, text, sizeof(text)) > 0) {
    return text;
  }
  X509_NAME_oneline(name, text, sizeof(text));
  return text;
}

std::string ShownTime(const ASN1_TIME* time) {
  std::tm parts{};
  if (ASN1_TIME_to_tm(time, &parts) != 1) return "an unreadable date";
  return absl::FormatTime("%Y-%m-%d %H:%M:%S UTC", absl::FromTM(parts, absl::UTCTimeZone()),
                          absl::UTCTimeZone());
}

std::string ShownHosts(const X509* certificate) {
  const OwnedOpenssl<GENERAL_NAMES> names(
      static_cast<GENERAL_NAMES*>(X509_get_ext_d2i(certificate, NID_subject_alt_name, nullptr, nullptr)));
  std::vector<std::string> hosts;
  for (int i = 0; names != nullptr && i < sk_GENERAL_NAME_num(names.get()); ++i) {
    const GENERAL_NAME* name = sk_GENERAL_NAME_value(names.get(), i);
    if (name->type == GEN_DNS) {
      hosts.emplace_back(reinterpret_cast<const char*>(ASN1_STRING_get0_data(name->d.dNSName)),
                         static_cast<size_t>(ASN1_STRING_length(name->d.dNSName)));
    } else if (name->type == GEN_IPADD) {
      hosts.push_back(ShownAddress(name->d.iPAddress));
    }
  }
  return hosts.empty() ? "no host" : absl::StrJoin(hosts, ", ");
}

absl::Time ExpiryOf(const X509* certificate) {
  std::tm parts{};
  if (ASN1_TIME_to_tm(X509_get0_notAfter(certificate), &parts) != 1) return absl::InfinitePast();
  return absl::FromTM(parts, absl::UTCTimeZone());
}

std::string CommonNameOf(const X509* certificate) {
  const std::vector<std::string> names = TextsOf(certificate, NID_commonName);
  return names.size() == 1 ? names[0] : "";
}

std::vector<std::string> UnitsOf(const X509* certificate) {
  return TextsOf(certificate, NID_organizationalUnitName);
}

std::vector<std::string> UrisOf(const X509* certificate) {
  const OwnedOpenssl<GENERAL_NAMES> names(
      static_cast<GENERAL_NAMES*>(X509_get_ext_d2i(certificate, NID_subject_alt_name, nullptr, nullptr)));
  std::vector<std::string> uris;
  for (int i = 0; names != nullptr && i < sk_GENERAL_NAME_num(names.get()); ++i) {
    const GENERAL_NAME* name = sk_GENERAL_NAME_value(names.get(), i);
    if (name->type != GEN_URI) continue;
    std::string uri(reinterpret_cast<const char*>(ASN1_STRING_get0_data(name->d.uniformResourceIdentifier)),
                    static_cast<size_t>(ASN1_STRING_length(name->d.uniformResourceIdentifier)));
    if (uri.find('\0') == std::string::npos) uris.push_back(std::move(uri));
  }
  return uris;
}

std::string WhyNotValid(const X509* certificate, absl::Time now) {
  time_t seconds = absl::ToTimeT(now);
  if (X509_cmp_time(X509_get0_notBefore(certificate), &seconds) > 0) {
    return absl::StrCat("is not valid before ", ShownTime(X509_get0_notBefore(certificate)));
  }
  if (X509_cmp_time(X509_get0_notAfter(certificate), &seconds) < 0) {
    return absl::StrCat("has expired on ", ShownTime(X509_get0_notAfter(certificate)));
  }
  return "";
}

}  // namespace recon
