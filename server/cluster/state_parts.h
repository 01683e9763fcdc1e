#pragma once

#include <cstdint>
#include <functional>

#include "absl/base/thread_annotations.h"
#include "common/base/ids.h"
#include "common/base/mutex.h"
#include "proto/cluster.pb.h"
#include "server/cluster/server_links.h"

namespace recon {

// What the other servers have to do with the state of the workers, where these have the optimizer: each keeps
// its part of an upload aside until the head says that all of it is there, and all of them then have it
// (WorkersState).
//
// Threads: thread-safe. Its lock may be taken under that of the ParamServer, and is a leaf.
class StateParts {
 public:
  // `links` outlives this, and may still be made.
  explicit StateParts(ServerLinks* links) : links_(links) {}

  // Only this upload is taken from now on; `staged` is called for each place that has all of its part, with
  // the step before which the state is. On any thread; it must not block.
  using Staged = std::function<void(uint32_t place, uint64_t step)>;
  void Await(WorkerId worker, uint64_t upload, Staged staged);
  // Called where the head's own part takes its place, under the lock that gives cuts their order.
  void Commit(uint64_t upload);
  // The state of that snapshot takes the place of what there is, under the number of an upload.
  void Restore(uint64_t generation, uint64_t upload);

  // A place has all of its part; of another upload than was asked for last it is left alone.
  void Note(uint32_t place, const StateStaged& staged);

 private:
  ServerLinks* const links_;

  Mutex mu_;
  uint64_t upload_ ABSL_GUARDED_BY(mu_) = 0;
  Staged staged_ ABSL_GUARDED_BY(mu_);
};

}  // namespace recon
