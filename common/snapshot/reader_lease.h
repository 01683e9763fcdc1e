#pragma once

#include <memory>
#include <set>
#include <string>
#include <thread>

#include "absl/base/thread_annotations.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "common/base/ids.h"
#include "common/base/mutex.h"
#include "common/storage/object_store.h"

namespace recon {

// Keeps a generation from being removed while somebody reads it: an object beside the snapshots (FORMAT.md),
// renewed by a thread of its own until the lease is destroyed. One whose reader died ends by itself,
// kDuration after it was written by the clock of the store: the reader's own may be off by hours.
//
// Threads: taken and destroyed on one thread; destroying waits for a renewal under way.
class ReaderLease {
 public:
  static constexpr absl::Duration kDuration = absl::Minutes(5);

  // As CheckNotRetired(); PermissionDenied where nothing can be written.
  // `store` must outlive the lease and be thread-safe.
  // It is renewed each `renew_after`.
  static absl::StatusOr<std::unique_ptr<ReaderLease>> Take(ObjectStore* store, Generation generation,
                                                           absl::Duration renew_after = kDuration / 3);
  // The same; nothing, and a line in the log, where the generation is there but a lease cannot be had.
  static absl::StatusOr<std::unique_ptr<ReaderLease>> TakeIfWritable(ObjectStore* store,
                                                                     Generation generation);
  ~ReaderLease();

 private:
  ReaderLease(ObjectStore* store, Generation generation, absl::Duration renew_after)
      : store_(store), generation_(generation), renew_after_(renew_after) {}
  absl::Status Renew();
  void Run();

  ObjectStore* const store_;
  const Generation generation_;
  const absl::Duration renew_after_;
  std::string name_;  // The thread's, once it runs.

  Mutex mu_;
  bool stopping_ ABSL_GUARDED_BY(mu_) = false;
  std::thread thread_;
};

// Those that somebody reads now.
absl::StatusOr<std::set<Generation>> LeasedGenerations(ObjectStore* store);
// As far as it can; those of other users may stay.
void RemoveExpiredLeases(ObjectStore* store);
// NotFound if the generation is not there, FailedPrecondition if it is being removed.
absl::Status CheckNotRetired(ObjectStore* store, Generation generation);

}  // namespace recon
