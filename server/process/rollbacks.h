#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "absl/status/statusor.h"
#include "common/base/lane.h"
#include "common/snapshot/reader_lease.h"
#include "proto/control.pb.h"
#include "server/cluster/cluster.h"
#include "server/membership/divergence_watch.h"
#include "server/process/server_process.h"

namespace recon {

// Asks for rollbacks: plans them when an operator or the divergence of training wants one, and puts the plan
// into the control database, from which the next recovery does it (HeadRecovery).
//
// Threads: a lane of its own plans; the rest is thread-safe.
// Shutdown: the destructor finishes what was asked for.
class Rollbacks {
 public:
  // `process` outlives this, and so does `cluster`, which is null with one server. `last`: the rollback that
  // was done last, if there is one.
  Rollbacks(ServerProcess* process, const Cluster* cluster, RollbackRecord last)
      : process_(*process), cluster_(cluster), last_(std::move(last)) {}

  using Done = std::function<void(const absl::StatusOr<RollbackReply>&)>;
  // `done` runs on the lane, with the errors of PlanRollback(); FailedPrecondition with several servers for
  // what is not to a snapshot, and if a rollback is under way.
  void Ask(const RollbackRequest& request, Done done);
  // Does what --on-divergence says, and has the lane say which pushes since the last good snapshot have the
  // largest gradients. Aborted if the server is to end for it. Waits for the lane.
  absl::Status OnDivergence(const DivergenceWatch::Finding& finding);
  // All servers go back to that snapshot. Waits for the lane. Errors are those of the store and the database.
  absl::Status GoBackTogether(uint64_t generation, const std::string& why);
  // A rollback is certain to come: the server recovers anew, and does it.
  bool certain() const { return certain_.load(); }

 private:
  absl::StatusOr<RollbackReply> Plan(const RollbackRequest& request, bool automatic);
  absl::Status Commit(const RollbackRecord& plan);
  // With several servers: a synchronous step that no worker has begun, on none of them.
  uint64_t FirstStepNobodyHasBegun() const;
  void SayLargestPushes(const absl::StatusOr<Generation>& good);

  // Set in the constructor.
  ServerProcess& process_;
  const Cluster* const cluster_;
  const RollbackRecord last_;

  std::atomic<bool> certain_{false};
  // Lane only.
  std::unique_ptr<ReaderLease> kept_;         // Of the snapshot that it begins with.
  std::optional<uint64_t> largest_said_for_;  // The sequence that was looked from last.
  Lane lane_{"rollback"};
};

}  // namespace recon
