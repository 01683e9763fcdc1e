#include "common/snapshot/reader_lease.h"

#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/base/check.h"
#include "common/base/hash.h"
#include "common/base/log.h"
#include "common/base/start_thread.h"
#include "common/base/status_macros.h"
#include "common/snapshot/manifest.h"

namespace recon {
namespace {

absl::StatusOr<bool> Exists(ObjectStore* store, const std::string& name) {
  const absl::Status found = store->Size(name).status();
  if (absl::IsNotFound(found)) return false;
  RECON_RETURN_IF_ERROR(found);
  return true;
}

struct FoundLease {
  std::string name;
  Generation generation;
  bool ended = false;
};

// One of which nobody says how old it is never ends.
absl::StatusOr<std::vector<FoundLease>> FindLeases(ObjectStore* store) {
  std::vector<FoundLease> leases;
  RECON_ASSIGN_OR_RETURN(const std::vector<std::string> names, store->List(kLeasePrefix));
  for (const std::string& name : names) {
    const absl::StatusOr<Generation> generation = GenerationOfName(name);
    if (!generation.ok()) continue;
    const absl::StatusOr<absl::Duration> age = store->Age(name);
    if (absl::IsNotFound(age.status())) continue;  // Renewed or given back meanwhile.
    leases.push_back({name, *generation, age.ok() && *age >= ReaderLease::kDuration});
  }
  return leases;
}

}  // namespace

absl::Status CheckNotRetired(ObjectStore* store, Generation generation) {
  RECON_ASSIGN_OR_RETURN(const bool retired, Exists(store, RetiredName(generation)));
  RECON_ASSIGN_OR_RETURN(const bool there, Exists(store, ManifestName(generation)));
  const std::string what = absl::StrCat(store->Describe(), ": snapshot ", generation.value());
  if (!there) return absl::NotFoundError(what + " is not there");
  if (retired) return absl::FailedPreconditionError(what + " is being removed");
  return absl::OkStatus();
}

absl::StatusOr<std::unique_ptr<ReaderLease>> ReaderLease::Take(ObjectStore* store, Generation generation,
                                                               absl::Duration renew_after) {
  std::unique_ptr<ReaderLease> lease(new ReaderLease(store, generation, renew_after));
  RECON_RETURN_IF_ERROR(lease->Renew());
  // The collector looks for leases when its mark is there, we look for the mark when our lease is there: one
  // of the two sees the other.
  RECON_RETURN_IF_ERROR(CheckNotRetired(store, generation));
  RECON_RETURN_IF_ERROR(StartThread([raw = lease.get()] { raw->Run(); }, &lease->thread_));
  return lease;
}

absl::StatusOr<std::unique_ptr<ReaderLease>> ReaderLease::TakeIfWritable(ObjectStore* store,
                                                                         Generation generation) {
  absl::StatusOr<std::unique_ptr<ReaderLease>> lease = Take(store, generation);
  if (lease.ok() || absl::IsNotFound(lease.status())) return lease;
  LogWarn("read without a lease, a server may remove snapshot {} meanwhile: {}", generation.value(),
          lease.status().message());
  return nullptr;
}

ReaderLease::~ReaderLease() {
  {
    MutexLock lock(&mu_);
    stopping_ = true;
  }
  if (thread_.joinable()) thread_.join();
  if (!name_.empty()) store_->Delete(name_).IgnoreError();  // Otherwise it ends by itself.
}

absl::Status ReaderLease::Renew() {
  const std::string name = LeaseName(generation_, RandomNonZero());
  RECON_RETURN_IF_ERROR(store_->PutIfAbsent(name, ""));
  const std::string before = std::exchange(name_, name);
  RECON_CHECK(before != name, "a lease has the name of the one before");
  return before.empty() ? absl::OkStatus() : store_->Delete(before);
}

void ReaderLease::Run() {
  while (true) {
    {
      MutexLock lock(&mu_);
      if (mu_.AwaitFor(renew_after_, [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) { return stopping_; }))
        return;
    }
    const absl::Status renewed = Renew();
    if (!renewed.ok()) {
      LogWarn("lease of snapshot {}: {}; tried again", generation_.value(), renewed.message());
    }
  }
}

absl::StatusOr<std::set<Generation>> LeasedGenerations(ObjectStore* store) {
  RECON_ASSIGN_OR_RETURN(const std::vector<FoundLease> leases, FindLeases(store));
  std::set<Generation> leased;
  for (const FoundLease& lease : leases) {
    if (!lease.ended) leased.insert(lease.generation);
  }
  return leased;
}

void RemoveExpiredLeases(ObjectStore* store) {
  const absl::StatusOr<std::vector<FoundLease>> leases = FindLeases(store);
  if (!leases.ok()) return;
  for (const FoundLease& lease : *leases) {
    if (!lease.ended) continue;
    const absl::Status removed = store->Delete(lease.name);
    if (!removed.ok()) LogWarn("a lease that has ended stays: {}", removed.message());
  }
}

}  // namespace recon
