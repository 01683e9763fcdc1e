#pragma once

#include "absl/base/thread_annotations.h"
#include "absl/container/flat_hash_map.h"
#include "common/base/ids.h"
#include "common/base/mutex.h"

namespace recon {

// Which processes have connections for frames open, whatever their transport. Thread-safe.
class ConnectedProcesses {
 public:
  // A connection whose other end has shown to be this process; 0: nobody, nothing happens.
  void Opened(Incarnation process);
  void Closed(Incarnation process);
  bool Has(Incarnation process) const;

 private:
  mutable Mutex mu_;
  absl::flat_hash_map<Incarnation, int> connections_ ABSL_GUARDED_BY(mu_);
};

}  // namespace recon
