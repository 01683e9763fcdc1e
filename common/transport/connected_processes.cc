#include "common/transport/connected_processes.h"

namespace recon {

void ConnectedProcesses::Opened(Incarnation process) {
  if (process == Incarnation()) return;
  MutexLock lock(&mu_);
  ++connections_[process];
}

void ConnectedProcesses::Closed(Incarnation process) {
  if (process == Incarnation()) return;
  MutexLock lock(&mu_);
  const auto found = connections_.find(process);
  if (found != connections_.end() && --found->second == 0) connections_.erase(found);
}

bool ConnectedProcesses::Has(Incarnation process) const {
  MutexLock lock(&mu_);
  return connections_.contains(process);
}

}  // namespace recon
