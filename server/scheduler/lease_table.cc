#include "server/scheduler/lease_table.h"

#include "common/base/check.h"

namespace recon {

LeaseId LeaseTable::Grant(const Task& task, WorkerId holder, absl::Time now, std::optional<uint64_t> pushes) {
  RECON_CHECK_GE(task.splits, 1);
  const LeaseId id(++next_);
  const bool is_new = leases_.insert({id, {task, holder, now + duration_, pushes}}).second;
  RECON_CHECK(is_new, "two leases have one number");
  held_[holder].insert(id);
  return id;
}

LeaseTable::Lease LeaseTable::Remove(std::map<LeaseId, Lease>::iterator lease) {
  const auto holder = held_.find(lease->second.holder);
  RECON_CHECK(holder != held_.end() && holder->second.erase(lease->first) == 1, "a lease of nobody");
  if (holder->second.empty()) held_.erase(holder);
  const Lease ended = lease->second;
  leases_.erase(lease);
  return ended;
}

std::vector<LeaseTable::Lease> LeaseTable::LeasesOf(WorkerId holder) const {
  std::vector<Lease> leases;
  for (const LeaseId id : HeldBy(holder)) leases.push_back(leases_.at(id));
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
  const auto found = leases_.find(lease);
  Task& task = found->second.task;
  if (task.split != first.split) return false;
  RECON_CHECK_GT(task.splits, 0, "a lease of nothing");
  if (--task.splits == 0) {
    Remove(found);
    return true;
  }
  task.split = SplitId(task.split.value() + 1);
  task.begin = first.end;
  RECON_CHECK_LT(task.begin, task.end);
  return true;
}

std::optional<Task> LeaseTable::Take(LeaseId lease, WorkerId holder) {
  if (!Holds(lease, holder)) return std::nullopt;
  return Remove(leases_.find(lease)).task;
}

void LeaseTable::Renew(LeaseId lease, WorkerId holder, absl::Time now) {
  if (Holds(lease, holder)) leases_[lease].expires = now + duration_;
}

std::vector<LeaseId> LeaseTable::HeldBy(WorkerId holder) const {
  const auto found = held_.find(holder);
  if (found == held_.end()) return {};
  return {found->second.begin(), found->second.end()};
}

std::set<WorkerId> LeaseTable::Holders() const {
  std::set<WorkerId> holders;
  for (const auto& [holder, leases] : held_) holders.insert(holders.end(), holder);
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
    const auto lease = it++;
    if (lease->second.expires <= now) expired.push_back(Remove(lease));
  }
  return expired;
}

}  // namespace recon
