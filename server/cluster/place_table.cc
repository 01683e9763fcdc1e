#include "server/cluster/place_table.h"

#include <algorithm>

namespace recon {

bool Resumes(const ServerHello& hello, uint32_t place, uint32_t servers) {
  return hello.server() == place && hello.servers() == servers;
}

PlaceTable::PlaceTable(uint32_t servers, const ServerTable& saved) : ids_(servers) {
  for (int i = 1; i < saved.id_size() && i < static_cast<int>(servers); ++i) ids_[i] = saved.id(i);
}

uint32_t PlaceTable::PlaceFor(const ServerHello& hello) const {
  for (uint32_t i = 1; i < ids_.size(); ++i) {
    if (ids_[i] == hello.server_id()) return i;
  }
  // A table that was lost is made again by those who come with what they have.
  if (hello.servers() == ids_.size() && hello.server() > 0 && hello.server() < ids_.size() &&
      ids_[hello.server()] == 0) {
    return hello.server();
  }
  for (uint32_t i = 1; i < ids_.size(); ++i) {
    if (ids_[i] == 0) return i;
  }
  return 0;
}

ServerTable PlaceTable::Given(uint32_t place, uint64_t server_id) const {
  ServerTable table;
  for (uint32_t i = 0; i < ids_.size(); ++i) table.add_id(i == place ? server_id : ids_[i]);
  return table;
}

void PlaceTable::AddSpare(const std::shared_ptr<ServerLink>& link, const ServerHello& hello, absl::Time now) {
  spares_.push_back({link, hello, now});
}

void PlaceTable::HearOfSpare(const ServerLink* link, absl::Time now) {
  for (Spare& spare : spares_) {
    if (spare.link.get() == link) spare.last_heard = now;
  }
}

void PlaceTable::DropSpare(const ServerLink* link) {
  const auto is_it = [link](const Spare& spare) { return spare.link.get() == link; };
  spares_.erase(std::remove_if(spares_.begin(), spares_.end(), is_it), spares_.end());
}

bool PlaceTable::IsSpare(const ServerLink* link) const {
  return std::any_of(spares_.begin(), spares_.end(),
                     [link](const Spare& spare) { return spare.link.get() == link; });
}

std::vector<std::shared_ptr<ServerLink>> PlaceTable::SilentSpares(absl::Time now,
                                                                  absl::Duration silence_max) const {
  std::vector<std::shared_ptr<ServerLink>> silent;
  for (const Spare& spare : spares_) {
    if (now - spare.last_heard > silence_max) silent.push_back(spare.link);
  }
  return silent;
}

std::optional<PlaceTable::Spare> PlaceTable::TakeSpare(absl::Time now, absl::Duration silence_max) {
  const auto alive = std::find_if(spares_.begin(), spares_.end(),
                                  [&](const Spare& spare) { return now - spare.last_heard <= silence_max; });
  if (alive == spares_.end()) return std::nullopt;
  const Spare taken = *alive;
  spares_.erase(alive);
  return taken;
}

}  // namespace recon
