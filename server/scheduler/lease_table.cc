#include "server/scheduler/lease_table.h"

#include "common/base/check.h"

namespace recon {

LeaseId LeaseTable::Grant(const Task& task, WorkerId holder, absl::Time now, std::optional<uint64_t> pushes) {
  RECON_CHECK_GE(task.splits, 1);
  const LeaseId id(++next_);
  const bool is_new = leases_.insert({id, {task, holder, now + duration_, pushes}}).second;
  RECON_CHECK(is_new, "two leases have one number");
  return id;
}

std::vector<LeaseTable::Lease> LeaseTable::LeasesOf(WorkerId holder) const {
  std::vector<Lease> leases;
  for (const auto& [id, lease] : leases_) {
    if (lease.holder == holder) leases.push_back(lease);
  }
  return leases;
}

bool LeaseTable::PushedFor(LeaseId lease, uint64_t pushes) const {
  const auto found = leases_.find(lease);
  return found != leases_.end() && (!found->second.pushes || *found->second.pushes != pushes);
}

bool LeaseTable::Holds(LeaseId lease, WorkerId holder) const {
  const auto found = leases_.find(lease);
  return found != leases_.end() && found->second.holder == holder;
}

const Task* LeaseTable::Find(LeaseId lease, WorkerId holder) const {
  return Holds(lease, holder) ? &leases_.at(lease).task : nullptr;
}

bool LeaseTable::TakeFirst(LeaseId lease, WorkerId holder, const Task& first) {
  if (!Holds(lease, holder)) return false;
  Task& task = leases_[lease].task;
  if (task.split != first.split) return false;
  RECON_CHECK_GT(task.splits, 0, "a lease of nothing");
  if (--task.splits == 0) {
    leases_.erase(lease);
    return true;
  }
  task.split = SplitId(task.split.value() + 1);
  task.begin = first.end;
  RECON_CHECK_LT(task.begin, task.end);
  return true;
}

std::optional<Task> LeaseTable::Take(LeaseId lease, WorkerId holder) {
  if (!Holds(lease, holder)) return std::nullopt;
  const Task task = leases_[lease].task;
  leases_.erase(lease);
  return task;
}

void LeaseTable::Renew(LeaseId lease, WorkerId holder, absl::Time now) {
  if (Holds(lease, holder)) leases_[lease].expires = now + duration_;
}

std::vector<LeaseId> LeaseTable::HeldBy(WorkerId holder) const {
  std::vector<LeaseId> held;
  for (const auto& [id, lease] : leases_) {
    if (lease.holder == holder) held.push_back(id);
  }
  return held;
}

std::set<WorkerId> LeaseTable::Holders() const {
  std::set<WorkerId> holders;
  for (const auto& [id, lease] : leases_) holders.insert(lease.holder);
  return holders;
}

std::vector<Task> LeaseTable::TakeAllOf(WorkerId holder) {
  std::vector<Task> tasks;
  for (const LeaseId id : HeldBy(holder)) {
    const std::optional<Task> task = Take(id, holder);
    RECON_CHECK(task.has_value());
    tasks.push_back(*task);
  }
  return tasks;
}

std::vector<LeaseTable::Lease> LeaseTable::TakeExpired(absl::Time now) {
  std::vector<Lease> expired;
  for (auto it = leases_.begin(); it != leases_.end();) {
    if (it->second.expires > now) {
      ++it;
      continue;
    }
    expired.push_back(it->second);
    it = leases_.erase(it);
  }
  return expired;
}

}  // namespace recon
