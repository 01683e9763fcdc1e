#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/statusor.h"
#include "common/base/ids.h"
#include "common/base/mutex.h"
#include "common/snapshot/control_state.h"
#include "server/control/ports.h"
#include "server/data_plane/param_server.h"
#include "server/durability/control_db.h"

namespace recon {

// Keeps the control state twice: in the control database, synced, and in the push log, in its order among the
// pushes. Snapshots take it from here. Either copy may be lost.
//
// Threads: thread-safe. Blocks on the disk: never call it on a gRPC thread.
class ControlJournal final : public Journal {
 public:
  // Both must outlive the journal.
  ControlJournal(ControlDb* db, ParamServer* params) : db_(db), params_(params) {}

  // After the push log has been opened: it gets what the database has beyond `recovered`, which is what the
  // newest snapshot and the log had.
  absl::Status Start(const ControlState& recovered);

  // As ControlDb's.
  absl::StatusOr<uint64_t> NextClusterEpoch(uint64_t last) override { return db_->NextClusterEpoch(last); }

  absl::Status SavePolicy(const PolicyRecord& record) override;

  absl::StatusOr<std::optional<JobRecord>> LoadJob() const override { return db_->LoadJob(); }
  absl::Status SaveJob(const JobRecord& job) override;

  // The number of the worker of that name, given out when the name is new.
  absl::StatusOr<WorkerId> WorkerIdFor(const std::string& name) override;

  // AlreadyExists if this split was completed before: the first record stays.
  absl::Status SaveCompletion(const Completion& completion) override;
  absl::StatusOr<std::vector<Completion>> LoadCompletions() const override { return db_->LoadCompletions(); }

  // What goes with parameters cut at `sequence`: no split is completed there whose pushes are not in them.
  // Call it after the cut, with rising sequences.
  absl::StatusOr<ControlState> StateAt(uint64_t sequence);

 private:
  ControlDb* const db_;
  ParamServer* const params_;

  Mutex mu_;
  // Completions newer than the newest snapshot, and the sequence of each; none while it is being written.
  std::map<ControlState::SplitKey, std::optional<uint64_t>> recent_ ABSL_GUARDED_BY(mu_);
};

}  // namespace recon
