#include "common/web/web_guests.h"

#include <algorithm>
namespace recon {

std::optional<uint64_t> WebGuests::Came(uint64_t id, uint64_t address, absl::Time now) {
  guests_.erase(id);  // One that has ended, and nobody said so.
  std::optional<uint64_t> gone;
  if (size() >= limits_.connections_max) {
    const auto going = WhoHasToGo();
    going->second.going = true;
    gone = going->first;
  }
  guests_[id] = {address, now, now + limits_.ask_max};
  return gone;
}

WebGuests::Guests::iterator WebGuests::WhoHasToGo() {
  std::map<uint64_t, size_t> connections;
  for (const auto& [id, guest] : guests_) connections[guest.address] += guest.going ? 0 : 1;
  const auto before = [&](const auto& one, const auto& other) {
    if (one.second.going != other.second.going) return other.second.going;
    const size_t mine = connections[one.second.address], others = connections[other.second.address];
    return mine != others ? mine > others : one.second.since < other.second.since;
  };
  return std::min_element(guests_.begin(), guests_.end(), before);
}

void WebGuests::Asked(uint64_t id, absl::Time now) {
  const auto found = guests_.find(id);
  if (found == guests_.end()) return;
  found->second.since = now;
  found->second.until = now + limits_.answer_max;
}

void WebGuests::Answered(uint64_t id, absl::Time now) {
  const auto found = guests_.find(id);
  if (found == guests_.end()) return;
  found->second.since = now;
  found->second.until = now + limits_.ask_max;
}

std::vector<uint64_t> WebGuests::TakeOverdue(absl::Time now) {
  std::vector<uint64_t> overdue;
  for (auto& [id, guest] : guests_) {
    if (guest.going || now < guest.until) continue;
    guest.going = true;
    overdue.push_back(id);
  }
  return overdue;
}

absl::Time WebGuests::NextOverdue() const {
  absl::Time next = absl::InfiniteFuture();
  for (const auto& [id, guest] : guests_) {
    if (!guest.going) next = std::min(next, guest.until);
  }
  return next;
}

size_t WebGuests::size() const {
  return static_cast<size_t>(
      std::count_if(guests_.begin(), guests_.end(), [](const auto& one) { return !one.second.going; }));
}

}  // namespace recon
