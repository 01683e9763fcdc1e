#include "server/membership/membership.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "common/base/check.h"
#include "common/base/limits.h"
#include "common/base/status_macros.h"

namespace recon {
namespace {

// Two that ask in turn would be news each time.
constexpr absl::Duration kRivalToldEvery = absl::Minutes(1);

}  // namespace

absl::Status Membership::Admit(WorkerId worker, const Member& member, absl::Time now) {
  RECON_RETURN_IF_ERROR(CheckNotTakenOver(member.name, member.incarnation));
  const auto found = members_.find(worker);
  if (found == members_.end()) DropOldestGone();
  if (found == members_.end() && members_.size() >= limits::kMembersMax) {
    return absl::ResourceExhaustedError(
        absl::StrCat(members_.size(), " members, allowed are ", limits::kMembersMax));
  }
  if (found != members_.end() && found->second.incarnation != member.incarnation) {
    NoteSuperseded(found->second.incarnation, member.peer);
  }
  Member& mine = members_[worker];
  const WorkerProgress progress = mine.incarnation == member.incarnation ? mine.progress : WorkerProgress();
  mine = member;
  mine.progress = progress;
  mine.gone = false;
  mine.last_heard = now;
  RECON_CHECK_LE(members_.size(), limits::kMembersMax);
  return absl::OkStatus();
}

absl::Status Membership::CheckNotTakenOver(const std::string& name, Incarnation incarnation) const {
  const auto found = superseded_.find(incarnation);
  if (found == superseded_.end()) return absl::OkStatus();
  return absl::AlreadyExistsError(
      absl::StrCat("another process has taken over the name ", name,
                   found->second.empty() ? "" : absl::StrCat(": the one at ", found->second)));
}

bool Membership::HeldByAnother(WorkerId worker, Incarnation incarnation, absl::Time now) const {
  const auto found = members_.find(worker);
  if (found == members_.end() || found->second.gone) return false;
  return found->second.incarnation != incarnation && !suspect(found->second, now);
}

bool Membership::NoteRival(WorkerId worker, Incarnation rival, const std::string& peer, absl::Time now) {
  const auto found = members_.find(worker);
  RECON_CHECK(found != members_.end());
  Member& member = found->second;
  member.rival_peer = peer;
  if (rival == member.rival || now - member.rival_told_at < kRivalToldEvery) return false;
  member.rival = rival;
  member.rival_told_at = now;
  return true;
}

absl::Status Membership::Hear(WorkerId worker, Incarnation incarnation, absl::Time now) {
  const auto found = members_.find(worker);
  RECON_RETURN_IF_ERROR(CheckNotTakenOver(found == members_.end() ? "" : found->second.name, incarnation));
  if (found == members_.end()) {
    return absl::FailedPreconditionError(absl::StrCat("worker ", worker.value(), " is not registered"));
  }
  if (found->second.incarnation != incarnation) {
    return absl::FailedPreconditionError(absl::StrCat("worker ", found->second.name, " is incarnation ",
                                                      found->second.incarnation.value(), ", not ",
                                                      incarnation.value()));
  }
  if (found->second.gone) {
    return absl::FailedPreconditionError(
        absl::StrCat("worker ", found->second.name, " was evicted; register again"));
  }
  found->second.last_heard = now;
  return absl::OkStatus();
}

void Membership::DropOldestGone() {
  auto oldest = members_.end();
  size_t gone = 0;
  for (auto it = members_.begin(); it != members_.end(); ++it) {
    if (!it->second.gone) continue;
    ++gone;
    if (oldest == members_.end() || it->second.last_heard < oldest->second.last_heard) oldest = it;
  }
  if (gone < limits::kGoneMembersMax && members_.size() < limits::kMembersMax) return;
  if (oldest != members_.end()) members_.erase(oldest);
}

void Membership::NoteSuperseded(Incarnation incarnation, const std::string& by) {
  if (!superseded_.emplace(incarnation, by).second) return;
  superseded_in_order_.push_back(incarnation);
  if (superseded_in_order_.size() <= limits::kSupersededMax) return;
  superseded_.erase(superseded_in_order_.front());
  superseded_in_order_.pop_front();
}

void Membership::Excuse(absl::Time now) {
  for (auto& [worker, member] : members_) {
    if (!member.gone) member.last_heard = now;
  }
}

void Membership::Remove(WorkerId worker) {
  const auto found = members_.find(worker);
  if (found != members_.end()) found->second.gone = true;
}

std::vector<WorkerId> Membership::Expire(absl::Time now) {
  std::vector<WorkerId> expired;
  for (auto& [worker, member] : members_) {
    if (member.gone || now - member.last_heard <= timeouts_.evict_after) continue;
    member.gone = true;
    expired.push_back(worker);
  }
  return expired;
}

const Membership::Member* Membership::Find(WorkerId worker) const {
  const auto found = members_.find(worker);
  return found == members_.end() ? nullptr : &found->second;
}

Membership::Member* Membership::Find(WorkerId worker) {
  const auto found = members_.find(worker);
  return found == members_.end() ? nullptr : &found->second;
}

int Membership::alive() const {
  int alive = 0;
  for (const auto& [worker, member] : members_) alive += member.gone ? 0 : 1;
  return alive;
}

bool Membership::AnyComputes() const {
  return std::any_of(members_.begin(), members_.end(),
                     [](const auto& entry) { return !entry.second.gone && entry.second.computes; });
}

}  // namespace recon
