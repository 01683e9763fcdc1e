#include "tools/bench/simulated_grants.h"

#include <algorithm>

#include "absl/strings/str_cat.h"

namespace recon {

void SimulatedGrants::Hear(const WorkerIdentity& worker, absl::Time now) {
  Heard& heard = heard_[worker.worker()];
  heard.process = worker.incarnation();
  heard.at = now;
}

bool SimulatedGrants::Valid(const Granted& lease, absl::Time now) const {
  const Heard& heard = heard_.at(lease.worker);
  return now < lease.renewed + lease_ && heard.process == lease.process && now <= heard.at + evict_;
}

std::string SimulatedGrants::Grant(const WorkerIdentity& worker, const Lease& lease, absl::Time now) {
  std::string wrong;
  Granted granted{worker.worker(), worker.incarnation(), now, {}};
  for (uint32_t split = lease.split(); split < lease.split() + std::max(1u, lease.splits()); ++split) {
    const SplitKey key(lease.data_epoch(), split);
    granted.splits.insert(key);
    const auto held = holders_.find(key);
    const auto other = held == holders_.end() ? leases_.end() : leases_.find(held->second);
    if (wrong.empty() && other != leases_.end() && Valid(other->second, now)) {
      wrong = absl::StrCat("split ", split, " of data epoch ", key.first, " is leased twice: worker ",
                           other->second.worker, " holds it, and worker ", worker.worker(), " gets it");
    }
    holders_[key] = lease.lease();
  }
  leases_[lease.lease()] = std::move(granted);
  heard_[worker.worker()].leases.insert(lease.lease());
  return wrong;
}

void SimulatedGrants::Renew(uint64_t lease, absl::Time now) {
  if (const auto found = leases_.find(lease); found != leases_.end()) found->second.renewed = now;
}

void SimulatedGrants::Complete(uint64_t lease, uint32_t split) {
  const auto found = leases_.find(lease);
  if (found == leases_.end()) return;
  std::set<SplitKey>& splits = found->second.splits;
  for (auto it = splits.begin(); it != splits.end();) {
    if (it->second == split) {
      holders_.erase(*it);
      it = splits.erase(it);
    } else {
      ++it;
    }
  }
  if (splits.empty()) End(lease);
}

void SimulatedGrants::End(uint64_t lease) {
  const auto found = leases_.find(lease);
  if (found == leases_.end()) return;
  for (const SplitKey& split : found->second.splits) {
    if (const auto held = holders_.find(split); held != holders_.end() && held->second == lease) {
      holders_.erase(held);
    }
  }
  heard_[found->second.worker].leases.erase(lease);
  leases_.erase(found);
}

void SimulatedGrants::EndAllOf(uint32_t worker) {
  const std::set<uint64_t> leases = heard_[worker].leases;
  for (const uint64_t lease : leases) End(lease);
}

}  // namespace recon
