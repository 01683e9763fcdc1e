#pragma once

#include <atomic>
#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/time/time.h"
#include "common/base/lane.h"
#include "common/base/mutex.h"
#include "common/snapshot/snapshot_reader.h"
#include "common/storage/object_store.h"

namespace recon {

// The snapshots of a store as the dashboard shows them, and what came of verifying one. Looking and verifying
// take turns on a thread of their own, at low priority: nobody who asks waits for the store.
//
// Threads: thread-safe.
// Shutdown: the destructor gives up a verification within one chunk. It waits for what the store is asked
// just then.
class SnapshotView {
 public:
  // Older ones are not shown: each costs its manifest's bytes to read, once.
  static constexpr size_t kShownMax = 64;

  explicit SnapshotView(std::shared_ptr<ObjectStore> store);
  ~SnapshotView();

  // What is known now, as JSON: {"loading", "error", "snapshots": [{"generation", "created_unix_ms",
  // "reason", "state_root", "raw_bytes", "stored_bytes", "non_finite_values", "pinned", "sequence"}],
  // "verify": null or
  // {"generation", "running", "done", "chunks", "ok", "error"}}; of a snapshot whose manifest is damaged or
  // cannot be read {"generation", "pinned", "error"}. Has the store looked at again if `newest` is another
  // generation than before or the last look is some seconds old.
  std::string Json(uint64_t newest, absl::Time now);

  // Begins to read a snapshot back; Json() tells how far it is. AlreadyExists while another one is being
  // read.
  absl::Status Verify(uint64_t generation);
  // What the store is asked just then is the last: as the destructor, but waits for nothing.
  void GiveUp() { stopping_.store(true); }

 private:
  struct Entry {
    Manifest summary;  // Without chunks and ledgers.
    uint64_t raw_bytes = 0, stored_bytes = 0;
    bool pinned = false;
    std::string error;  // Not empty: nothing else of it is known.
  };
  struct Verification {
    uint64_t generation = 0;
    bool running = false;
    int done = 0, chunks = 0;
    std::string error;  // Empty once it is not running: it is whole.
  };

  void Look();
  absl::StatusOr<std::map<Generation, Entry>> ReadEntries();
  // NotFound if it has been removed; Unavailable if the store does not answer. What else is wrong is the
  // entry's error.
  absl::StatusOr<Entry> ReadEntry(Generation generation) const;
  absl::Status ReadBack(Generation generation);

  const std::shared_ptr<ObjectStore> store_;
  const SnapshotReader reader_;
  std::atomic<bool> stopping_{false};

  Mutex mu_;
  std::map<Generation, Entry> entries_ ABSL_GUARDED_BY(mu_);
  std::string error_ ABSL_GUARDED_BY(mu_);
  bool looking_ ABSL_GUARDED_BY(mu_) = false;
  bool looked_ ABSL_GUARDED_BY(mu_) = false;
  uint64_t newest_ ABSL_GUARDED_BY(mu_) = 0;
  absl::Time looked_at_ ABSL_GUARDED_BY(mu_) = absl::InfinitePast();
  Verification verification_ ABSL_GUARDED_BY(mu_);

  Lane lane_;
};

}  // namespace recon
