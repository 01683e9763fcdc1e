#include "server/sync/staleness_gate.h"

#include <algorithm>

#include "common/base/check.h"

namespace recon {

void StalenessGate::RaiseTo(uint64_t next_step, Progress* progress) {
  progress->next_step = std::max(progress->next_step, next_step);
  auto& ahead = progress->ahead;
  ahead.erase(ahead.begin(), ahead.lower_bound(progress->next_step));
  while (!ahead.empty() && *ahead.begin() == progress->next_step) {
    ahead.erase(ahead.begin());
    ++progress->next_step;
  }
  RECON_CHECK(ahead.empty() || *ahead.begin() > progress->next_step);
}

void StalenessGate::Know(WorkerId worker, uint64_t next_step) {
  workers_[worker];
  Raise(worker, next_step);
}

void StalenessGate::Forget(WorkerId worker) {
  Leave(worker);
  workers_.erase(worker);
}

uint64_t StalenessGate::Join(WorkerId worker, uint64_t next_step, uint64_t begun) {
  Progress& mine = workers_[worker];
  mine.active = true;
  RaiseTo(bound_ == kUnlimited ? next_step : std::max({next_step, frontier_, begun}), &mine);
  MoveFrontier();
  return mine.next_step;
}

void StalenessGate::Leave(WorkerId worker) {
  const auto found = workers_.find(worker);
  if (found == workers_.end() || !found->second.active) return;
  found->second.active = false;
  // The last one to leave takes the frontier along, so that steps keep growing for whoever joins next.
  if (!any_active() && !followed_active_) frontier_ = std::max(frontier_, found->second.next_step);
  MoveFrontier();
}

bool StalenessGate::active(WorkerId worker) const {
  const auto found = workers_.find(worker);
  return found != workers_.end() && found->second.active;
}

uint64_t StalenessGate::next_step(WorkerId worker) const {
  const auto found = workers_.find(worker);
  return found == workers_.end() ? 0 : found->second.next_step;
}

std::vector<WorkerId> StalenessGate::Awaited(uint64_t step) const {
  std::vector<WorkerId> awaited;
  for (const auto& [worker, progress] : workers_) {
    if (progress.active && progress.next_step <= step) awaited.push_back(worker);
  }
  return awaited;
}

void StalenessGate::Raise(WorkerId worker, uint64_t next_step) {
  const auto found = workers_.find(worker);
  if (found == workers_.end()) return;
  RaiseTo(next_step, &found->second);
  // Beyond what was said: by pushes that are complete.
  if (found->second.next_step > next_step) MoveFrontierAlone(found->second);
  MoveFrontier();
}

void StalenessGate::Advance(WorkerId worker, uint64_t step) {
  const auto found = workers_.find(worker);
  if (found == workers_.end() || step < found->second.next_step) return;
  const bool among_last = found->second.next_step <= frontier_;
  found->second.ahead.insert(step);
  RaiseTo(0, &found->second);
  MoveFrontierAlone(found->second);
  if (among_last) MoveFrontier();  // Nobody else holds it where it is.
}

void StalenessGate::Follow(uint64_t frontier, bool anyone_active) {
  frontier_ = std::max(frontier_, frontier);
  followed_active_ = anyone_active;
}

bool StalenessGate::any_active() const {
  if (followed_active_) return *followed_active_;
  return std::any_of(workers_.begin(), workers_.end(), [](const auto& entry) { return entry.second.active; });
}

size_t StalenessGate::active_workers() const {
  return static_cast<size_t>(
      std::count_if(workers_.begin(), workers_.end(), [](const auto& entry) { return entry.second.active; }));
}

bool StalenessGate::Open(uint64_t step) const {
  if (bound_ == kUnlimited || (bound_ > 0 && !any_active())) return true;
  return frontier_ + static_cast<uint64_t>(bound_) > step;
}

void StalenessGate::MoveFrontierAlone(const Progress& progress) {
  if (bound_ == 0 && !any_active() && !followed_active_) {
    frontier_ = std::max(frontier_, progress.next_step);
  }
}

void StalenessGate::MoveFrontier() {
  if (!any_active() || followed_active_) return;
  uint64_t lowest = UINT64_MAX;
  for (const auto& [worker, progress] : workers_) {
    if (progress.active) lowest = std::min(lowest, progress.next_step);
  }
  frontier_ = std::max(frontier_, lowest);
}

}  // namespace recon
