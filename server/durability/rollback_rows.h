#pragma once

#include "absl/status/statusor.h"
#include "common/snapshot/control_state.h"
#include "proto/job.pb.h"
#include "server/durability/control_rows.h"

namespace recon {

// The rollback that the next recovery is to do, and the last one that was done, in the control database. A
// rollback passes from the one to the other in a single write, together with the completions that it leaves:
// whenever the process ends, it has been done whole or is to be done yet.
//
// Threads: thread-safe. Blocks on the disk. The rows outlive it.
class RollbackRows {
 public:
  explicit RollbackRows(ControlRows* rows) : rows_(rows) {}

  // Empty if there is none.
  absl::StatusOr<RollbackRecord> LoadNext() const;
  absl::StatusOr<RollbackRecord> LoadLast() const;
  absl::Status SaveNext(const RollbackRecord& record);
  // It will not be done.
  absl::Status DropNext();
  // What is known of the one that was done.
  absl::Status SaveLast(const RollbackRecord& record);
  // It is done: of the completions those of `state` are left. All of it or nothing.
  absl::Status Finish(const RollbackRecord& record, const ControlState& state);

 private:
  ControlRows* const rows_;
};

}  // namespace recon
