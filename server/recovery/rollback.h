#pragma once

#include <cstdint>
#include <string>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "common/base/ids.h"
#include "common/snapshot/control_state.h"
#include "common/snapshot/snapshot_reader.h"
#include "common/storage/file_system.h"
#include "proto/control.pb.h"
#include "proto/manifest.pb.h"
#include "server/data_plane/param_server.h"

namespace recon {

// Rollbacks of a job that one server holds: to a snapshot, to a record of the push log, or without some
// pushes. LOG.md, "Rolling back", has the rules. All of it blocks on the disk. With several servers a head
// goes back to a snapshot only, and the others do so by their assignments (server/process/place_recovery.h).

// What a rollback is planned from. The pointers must outlive the call.
struct RollbackBasis {
  const SnapshotReader* reader = nullptr;
  FileSystem* files = nullptr;
  std::string log_directory;
  uint64_t job_id = 0;
  // Of the state that there is.
  uint64_t history = 0;
  uint64_t last_sequence = 0;
  ControlState control;
};

// Finds the snapshot to begin with, and what comes of it; changes nothing. The plan has no history yet.
// InvalidArgument for a request that means nothing; NotFound for a snapshot, a record or a push that is not
// there, with how far back it can be; FailedPrecondition for what lies before an earlier rollback.
absl::StatusOr<RollbackReply> PlanRollback(const RollbackRequest& request, const RollbackBasis& basis);

// The newest snapshot of the job whose values are all finite, taken before `when`. If that is the outcome of
// `last`, an automatic rollback, it has led nowhere: then one before, if there is any. NotFound if there is
// none at all.
absl::StatusOr<Generation> LastGoodBefore(absl::Time when, const SnapshotReader& reader, uint64_t job_id,
                                          const RollbackRecord& last);

// What a rollback came to.
struct RolledBack {
  Manifest base;            // The snapshot it began with, whose packs may be referred to.
  uint64_t end = 0;         // Last record of the history before.
  uint64_t first_step = 0;  // No synchronous step before this one is begun.
  ControlState control;     // Completions as they were then; all else as it is now.
};

// Does what `record` says, from the snapshots and the log: restores `params`, which has the rules of the new
// history, and says what is to be published. `newest`: the newest manifest that can be read. `now`: the
// control state that there is.
// If the record is `done`, its snapshot is damaged: records of the new history are applied, too.
// DataLoss or NotFound if the record's snapshot cannot be used.
absl::StatusOr<RolledBack> RollBack(const RollbackRecord& record, const SnapshotReader& reader,
                                    FileSystem* files, const std::string& log_directory,
                                    const Manifest& newest, const ControlState& now, ParamServer* params);

}  // namespace recon
