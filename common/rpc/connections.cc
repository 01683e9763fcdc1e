#include "common/rpc/connections.h"

namespace recon {

std::shared_ptr<Connection> Connections::Add(const std::string& peer) {
  auto connection = std::make_shared<Connection>();
  MutexLock lock(&mu_);
  by_peer_[peer] = connection;
  return connection;
}

std::shared_ptr<Connection> Connections::Find(absl::string_view peer) const {
  MutexLock lock(&mu_);
  const auto found = by_peer_.find(peer);
  return found == by_peer_.end() ? nullptr : found->second;
}

void Connections::Remove(const std::string& peer, const Connection* connection) {
  MutexLock lock(&mu_);
  const auto found = by_peer_.find(peer);
  if (found != by_peer_.end() && found->second.get() == connection) by_peer_.erase(found);
}

}  // namespace recon
