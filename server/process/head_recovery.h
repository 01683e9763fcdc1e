#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include "absl/status/statusor.h"
#include "common/optim/apply_rules.h"
#include "common/snapshot/carried_tensors.h"
#include "common/snapshot/control_state.h"
#include "proto/control.pb.h"
#include "proto/manifest.pb.h"
#include "server/cluster/cluster.h"
#include "server/control/lane_coordinator.h"
#include "server/durability/log_reader.h"
#include "server/durability/push_log.h"
#include "server/process/place_recovery.h"
#include "server/process/server_process.h"
#include "server/recovery/initial_values.h"
#include "server/recovery/rollback.h"
#include "server/recovery/snapshot_service.h"

namespace recon {

// The rollbacks that the control database knows of; one without a history is none.
struct RollbackRecords {
  RollbackRecord next;  // To be done by this start.
  RollbackRecord last;  // Done.

  // The history of what is recovered now, and logged from now on, with that newest snapshot.
  uint64_t History(const Manifest& newest) const;
};
// One that the server had published when it ended becomes the last. With several servers one is the last, not
// `done`, from the moment at which the head has gone back, and done when a snapshot of its history is there.
// FailedPrecondition for one that is to be done with several servers and is not to a snapshot.
absl::StatusOr<RollbackRecords> LoadRollbacks(const Manifest& newest, const ServerProcess& process);

// Takes a snapshot and waits for it.
absl::Status TakeSnapshot(const std::string& reason, SnapshotService* snapshots);

// How a head comes to its state: by what every server recovers from (recovery.h), by a rollback that was
// asked for, or, without a snapshot, as a new job. It fills the control database where that lacks something,
// and opens the push log.
//
// Threads: one. It blocks on disk and store.
class HeadRecovery {
 public:
  // The pointers outlive this. `cluster` and `initial` may be null.
  struct Parts {
    ServerProcess* process = nullptr;
    SnapshotService* snapshots = nullptr;
    LaneCoordinator* coordinator = nullptr;
    Cluster* cluster = nullptr;
    InitialValues* initial = nullptr;
  };
  HeadRecovery(const Parts& parts, RollbackRecords rollbacks)
      : parts_(parts), process_(*parts.process), rollbacks_(std::move(rollbacks)) {}

  // The snapshot that the state came from; none for a new job. `newest`: the newest manifest that can be
  // read.
  absl::StatusOr<std::optional<Manifest>> Recover(const Manifest& newest);
  // After Recover(): the rollback cannot be done, and the database does not have it any more.
  bool rollback_given_up() const { return rollback_given_up_; }
  // After Recover(): what the job had come to.
  const ControlState& control() const { return control_; }
  bool replayed_records() const { return replayed_ && replayed_->records > 0; }
  // The same: the snapshot has all that there is.
  bool all_in_snapshot() const { return replayed_ && replayed_->records == 0; }
  const RollbackRecord& last_rollback() const { return rollbacks_.last; }
  // With several servers: the state is restored, and a snapshot of it is to come.
  bool goes_back() const { return rollbacks_.last.history() != 0 && !rollbacks_.last.done(); }
  // Once that is published: last_rollback() is done.
  absl::Status NoteWentBack(uint64_t generation);

  // With several servers: what this one's state was recovered from.
  const RecoveredPlace& place() const { return place_; }
  // What a snapshot has of the job while a rollback's is taken; else none. The snapshots' thread.
  const std::optional<ControlState>& rolled_back() const { return rolled_back_; }

  // Where the log needs a snapshot to go on from, it is there, or is the first thing that is done when all
  // servers are.
  absl::Status OpenLog(const ApplyRules& rules);
  absl::Status SnapshotBeforeWork(const std::string& reason);

 private:
  absl::StatusOr<std::optional<Manifest>> GoBack(RollbackRecord record, const Manifest& newest);
  // The last steps of a rollback: of one server's job, and of the head's part of several servers'.
  absl::StatusOr<std::optional<Manifest>> FinishGoingBack(RollbackRecord record, const RolledBack& back);
  absl::StatusOr<std::optional<Manifest>> GoBackWithOthers(RollbackRecord record, const RolledBack& back);
  absl::StatusOr<std::optional<Manifest>> BeginNewJob();
  absl::StatusOr<bool> NoteRestored(const Manifest& snapshot, std::shared_ptr<const CarriedTensors> carried);
  absl::Status SpreadAnew(const Manifest& snapshot);
  absl::Status CheckNotBeyond(const Manifest& past) const;
  absl::Status DropUnfoundedCompletions();
  absl::Status NoteLost();
  absl::Status LeaveLog();
  absl::Status MakeRoomForLog(const PushLog::Options& options);
  bool synced() const { return process_.flags().log.durability == ServerFlags::Durability::kSync; }

  // Set in the constructor.
  const Parts parts_;
  ServerProcess& process_;
  RollbackRecords rollbacks_;

  std::optional<LogEnd> replayed_;
  ControlState control_;  // From snapshot and log.
  uint64_t restored_sequence_ = 0;
  RecoveredPlace place_;
  bool spread_anew_ = false;  // Over another number of servers.
  bool rollback_given_up_ = false;
  std::optional<ControlState> rolled_back_;
};

}  // namespace recon
