#pragma once

#include "absl/time/time.h"
#include "proto/config.pb.h"

namespace recon {

// Where a job is between its start and its end. It waits, runs, finishes (all work is done, and its last
// snapshot is being taken) and is finished; it may drain at any moment. It starts once, and is finished only
// when its last snapshot is published.
//
// Pure: no clock, `now` is an argument; not thread-safe.
class JobLifecycle {
 public:
  // A snapshot that the job cannot go on without is tried again after so long.
  static constexpr absl::Duration kSnapshotRetry = absl::Seconds(2);
  // After a restart no split is granted for so long: workers that were computing one register again first
  // (they try at least once a second) and go on with it.
  static constexpr absl::Duration kReturnGrace = absl::Seconds(1);

  // A job that has begun runs, whatever it lacks: StandstillWatch notices when it does not move.
  JobPhase phase() const;

  // Work begins, or goes on in a new process of the server.
  void Start();
  void Resume();
  // Workers can come from now on.
  void NoteServing(absl::Time now);
  bool started() const { return started_; }
  // Whether work is given out yet.
  bool MayGrant(absl::Time now) const { return now >= no_grants_before_; }

  // No more work is given out.
  void BeginDrain() { draining_ = true; }
  // All work is done. True if the last snapshot is to be taken now; EndFinish() says how that ended.
  bool BeginFinish(absl::Time now);
  void EndFinish(bool published, absl::Time now);
  bool finished() const { return finished_; }
  // All work is done, and the last snapshot is not published yet.
  bool finishing() const { return finishing_ && !finished_; }
  bool draining() const { return draining_; }
  // It drains, finishes or is finished.
  bool ending() const { return draining_ || finishing_ || finished_; }

  // It is finished, and whoever follows it has had time to see that: its workers, of whom `alive` have not
  // left, until `grace` has passed, and everybody else for a third of it.
  bool DoneAndQuiet(absl::Time now, absl::Duration grace, int alive) const;

 private:
  bool started_ = false;
  bool resumed_ = false;
  bool draining_ = false;
  bool finishing_ = false;
  bool finished_ = false;
  absl::Time no_grants_before_ = absl::InfinitePast();
  absl::Time finish_retry_at_ = absl::InfinitePast();
  absl::Time finished_at_ = absl::InfiniteFuture();
};

}  // namespace recon
