#include "server/sync/staleness_gate.h"

#include <algorithm>

namespace recon {

uint64_t StalenessGate::Join(WorkerId worker, uint64_t next_step) {
  Progress& mine = active_[worker];
  mine.next_step = std::max({mine.next_step, frontier_, next_step});
  mine.ahead.erase(mine.ahead.begin(), mine.ahead.lower_bound(mine.next_step));
  MoveFrontier();
  return active_[worker].next_step;
}

void StalenessGate::Leave(WorkerId worker) {
  const auto found = active_.find(worker);
  if (found == active_.end()) return;
  const uint64_t reached = found->second.next_step;
  active_.erase(found);
  // The last one to leave takes the frontier along, so that steps keep growing for whoever joins next.
  if (active_.empty()) frontier_ = std::max(frontier_, reached);
  MoveFrontier();
}

uint64_t StalenessGate::next_step(WorkerId worker) const {
  const auto found = active_.find(worker);
  return found == active_.end() ? 0 : found->second.next_step;
}

void StalenessGate::Advance(WorkerId worker, uint64_t step) {
  const auto found = active_.find(worker);
  if (found == active_.end() || step < found->second.next_step) return;
  Progress& mine = found->second;
  mine.ahead.insert(step);
  while (!mine.ahead.empty() && *mine.ahead.begin() == mine.next_step) {
    mine.ahead.erase(mine.ahead.begin());
    ++mine.next_step;
  }
  MoveFrontier();
}

bool StalenessGate::Open(uint64_t step) const {
  if (bound_ == kUnlimited || active_.empty()) return true;
  return frontier_ + static_cast<uint64_t>(bound_) > step;
}

void StalenessGate::Wait(Ticket ticket, uint64_t step, absl::Time deadline) { waiting_[ticket] = {step, deadline}; }

std::vector<StalenessGate::Ticket> StalenessGate::TakeReleased() {
  std::vector<Ticket> released;
  for (auto it = waiting_.begin(); it != waiting_.end();) {
    if (!Open(it->second.step)) {
      ++it;
      continue;
    }
    released.push_back(it->first);
    it = waiting_.erase(it);
  }
  return released;
}

std::vector<StalenessGate::Ticket> StalenessGate::TakeExpired(absl::Time now) {
  std::vector<Ticket> expired;
  for (auto it = waiting_.begin(); it != waiting_.end();) {
    if (it->second.deadline > now) {
      ++it;
      continue;
    }
    expired.push_back(it->first);
    it = waiting_.erase(it);
  }
  return expired;
}

void StalenessGate::MoveFrontier() {
  if (active_.empty()) return;
  uint64_t lowest = active_.begin()->second.next_step;
  for (const auto& [worker, progress] : active_) lowest = std::min(lowest, progress.next_step);
  frontier_ = std::max(frontier_, lowest);
}

}  // namespace recon
