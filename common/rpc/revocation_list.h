#pragma once

#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "common/rpc/x509.h"

namespace recon {

// Certificates that their CA has taken back (RFC 5280, section 5). Immutable once it is parsed.
class RevocationList {
 public:
  RevocationList() = default;
  // `pem`: one CRL or more. Each is signed by a certificate of `ca_pem`. InvalidArgument, whose text goes on
  // after the name of a file, for anything else.
  static absl::StatusOr<RevocationList> Parse(absl::string_view pem, absl::string_view ca_pem);

  // Whether it, or the CA of --tls-ca that has signed it, or one above that, is taken back.
  bool Has(const X509* certificate) const;
  size_t size() const { return revoked_.size(); }
  // When the first of the CRLs should have been replaced; InfiniteFuture if none says.
  absl::Time next_update() const { return next_update_; }

 private:
  bool Names(const X509* certificate) const;

  // The issuer's name and the serial number, both in DER.
  std::set<std::pair<std::string, std::string>> revoked_;
  std::vector<OwnedOpenssl<X509>> revoked_cas_;
  absl::Time next_update_ = absl::InfiniteFuture();
};

}  // namespace recon
