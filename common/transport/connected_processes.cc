#include "common/transport/connected_processes.h"

#include "common/base/check.h"

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
  RECON_CHECK(found != connections_.end(), "a connection is closed that was not opened");
  RECON_CHECK_GT(found->second, 0);
  if (--found->second == 0) connections_.erase(found);
}

bool ConnectedProcesses::Has(Incarnation process) const {
  MutexLock lock(&mu_);
  return connections_.contains(process);
}

}  // namespace recon
