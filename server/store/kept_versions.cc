#include "server/store/kept_versions.h"

#include <algorithm>

#include "common/base/check.h"

namespace recon {

void KeptVersions::Reset(uint32_t capacity) {
  capacity_ = capacity;
  first_ = 0;
  versions_.clear();
}

void KeptVersions::Keep(uint64_t version, const Pages& pages) {
  if (capacity_ == 0) return;
  RECON_CHECK(versions_.empty() || versions_.back().version < version, "versions ascend");
  RECON_CHECK_LE(versions_.size(), capacity_);
  if (versions_.size() == capacity_) versions_.pop_front();
  versions_.push_back({version, pages});
}

const KeptVersions::Pages* KeptVersions::Find(uint64_t version) const {
  if (version < first_) return nullptr;
  const auto found =
      std::lower_bound(versions_.begin(), versions_.end(), version,
                       [](const Version& kept, uint64_t wanted) { return kept.version < wanted; });
  return found != versions_.end() && found->version == version ? &found->pages : nullptr;
}

}  // namespace recon
