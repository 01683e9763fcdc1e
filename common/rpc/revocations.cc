#include "common/rpc/revocations.h"

#include <algorithm>

#include <map>
#include <memory>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/clock.h"
#include "common/base/log.h"
#include "common/base/status_macros.h"
#include "common/rpc/pem_file.h"

namespace recon {

absl::StatusOr<Revocations*> Revocations::Open(const std::string& file, const std::string& ca_file) {
  static Mutex* const mu = new Mutex;
  static auto* const all = new std::map<std::pair<std::string, std::string>, std::unique_ptr<Revocations>>;
  MutexLock all_lock(mu);
  std::unique_ptr<Revocations>& known = (*all)[{file, ca_file}];
  if (known != nullptr) return known.get();
  std::unique_ptr<Revocations> revocations(new Revocations(file, ca_file));
  {
    MutexLock lock(&revocations->mu_);
    RECON_RETURN_IF_ERROR(revocations->Look());
  }
  known = std::move(revocations);
  return known.get();
}

absl::Status Revocations::Look() {
  const absl::StatusOr<bool> changed = file_.Changed(Now());
  if (!changed.ok()) {
    return absl::InvalidArgumentError(absl::StrCat("--tls-crl ", changed.status().message()));
  }
  if (!*changed) return looked_;
  RECON_ASSIGN_OR_RETURN(const std::string text, ReadPemFile("--tls-crl", file_.path()));
  RECON_ASSIGN_OR_RETURN(const std::string ca, ReadPemFile("--tls-ca", ca_file_));
  absl::StatusOr<RevocationList> list = RevocationList::Parse(text, ca);
  if (!list.ok()) {
    return absl::InvalidArgumentError(absl::StrCat("--tls-crl ", file_.path(), list.status().message()));
  }
  LogInfo("--tls-crl {} names {} revoked certificates", file_.path(), list->size());
  if (list->next_update() < WallNow()) {
    LogWarn("--tls-crl {} should have been replaced by {}: it is used all the same", file_.path(),
            absl::FormatTime(absl::RFC3339_sec, list->next_update(), absl::UTCTimeZone()));
  }
  list_ = *std::move(list);
  file_.NoteRead();
  return absl::OkStatus();
}

bool Revocations::Has(const X509* certificate) {
  MutexLock lock(&mu_);
  const absl::Status looked = Look();
  if (!looked.ok() && looked != looked_) LogWarn("{}; the list that was there stays", looked.message());
  looked_ = looked;
  return list_.Has(certificate);
}

bool Revocations::HasAnyOf(absl::string_view pem) {
  const auto certificates = ReadCertificates(pem);
  return certificates.ok() && std::any_of(certificates->begin(), certificates->end(),
                                          [this](const auto& one) { return Has(one.get()); });
}

}  // namespace recon
