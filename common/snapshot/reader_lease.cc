#include "common/snapshot/reader_lease.h"

#include <algorithm>
#include <functional>
#include <utility>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "common/base/clock.h"
#include "common/base/hash.h"
#include "common/base/log.h"
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

// Calls `visit` with each lease's name, generation and end. One that cannot be understood is not a lease.
absl::Status ForEachLease(
    ObjectStore* store,
    const std::function<absl::Status(const std::string&, Generation, absl::Time)>& visit) {
  constexpr uint64_t kContentMax = 20;
  RECON_ASSIGN_OR_RETURN(const std::vector<std::string> names, store->List(kLeasePrefix));
  for (const std::string& name : names) {
    const absl::StatusOr<Generation> generation = GenerationOfName(name);
    if (!generation.ok()) continue;
    const absl::StatusOr<uint64_t> size = store->Size(name);
    if (absl::IsNotFound(size.status())) continue;  // Renewed or given back meanwhile.
    RECON_RETURN_IF_ERROR(size.status());
    const absl::StatusOr<std::string> content = store->Read(name, 0, std::min(*size, kContentMax));
    if (absl::IsNotFound(content.status())) continue;
    RECON_RETURN_IF_ERROR(content.status());
    int64_t unix_ms = 0;
    if (!absl::SimpleAtoi(*content, &unix_ms)) continue;
    RECON_RETURN_IF_ERROR(visit(name, *generation, absl::FromUnixMillis(unix_ms)));
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<std::unique_ptr<ReaderLease>> ReaderLease::Take(ObjectStore* store, Generation generation,
                                                               absl::Duration duration) {
  std::unique_ptr<ReaderLease> lease(new ReaderLease(store, generation, duration));
  RECON_RETURN_IF_ERROR(lease->Renew());
  // The collector looks for leases when its mark is there, we look for the mark when our lease is there: one
  // of the two sees the other.
  RECON_ASSIGN_OR_RETURN(const bool retired, Exists(store, RetiredName(generation)));
  RECON_ASSIGN_OR_RETURN(const bool there, Exists(store, ManifestName(generation)));
  if (retired || !there) {
    return absl::NotFoundError(absl::StrCat(store->Describe(), ": snapshot ", generation.value(),
                                            there ? " is being removed" : " is not there"));
  }
  lease->thread_ = std::thread([raw = lease.get()] { raw->Run(); });
  return lease;
}

absl::StatusOr<std::unique_ptr<ReaderLease>> ReaderLease::TakeIfWritable(ObjectStore* store,
                                                                         Generation generation) {
  absl::StatusOr<std::unique_ptr<ReaderLease>> lease = Take(store, generation);
  if (lease.ok() || absl::IsNotFound(lease.status())) return lease;
  spdlog::warn("read without a lease, a server may remove snapshot {} meanwhile: {}", generation.value(),
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
  RECON_RETURN_IF_ERROR(store_->PutIfAbsent(name, absl::StrCat(absl::ToUnixMillis(Now() + duration_))));
  const std::string before = std::exchange(name_, name);
  return before.empty() ? absl::OkStatus() : store_->Delete(before);
}

void ReaderLease::Run() {
  while (true) {
    {
      MutexLock lock(&mu_);
      if (mu_.AwaitFor(duration_ / 3, [this] { return stopping_; })) return;
    }
    const absl::Status renewed = Renew();
    if (!renewed.ok()) {
      spdlog::warn("lease of snapshot {}: {}; tried again", generation_.value(), renewed.message());
    }
  }
}

absl::StatusOr<std::set<Generation>> LeasedGenerations(ObjectStore* store, absl::Time now) {
  std::set<Generation> leased;
  RECON_RETURN_IF_ERROR(ForEachLease(store, [&](const std::string&, Generation generation, absl::Time end) {
    if (end > now) leased.insert(generation);
    return absl::OkStatus();
  }));
  return leased;
}

absl::Status RemoveExpiredLeases(ObjectStore* store, absl::Time now) {
  return ForEachLease(store, [&](const std::string& name, Generation, absl::Time end) {
    return end > now ? absl::OkStatus() : store->Delete(name);
  });
}

}  // namespace recon
