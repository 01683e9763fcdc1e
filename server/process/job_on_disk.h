#pragma once

#include <cstdint>
#include <memory>

#include "absl/status/statusor.h"
#include "proto/manifest.pb.h"
#include "server/process/server_process.h"
#include "server/recovery/initial_values.h"

namespace recon {

// What a head finds of its job when it starts.
struct JobOnDisk {
  // The newest manifest that can be read; generation 0: there is no snapshot.
  Manifest newest;
  uint64_t job_id = 0;
  // That of this start: no start before, of this job, had it.
  uint64_t cluster_epoch = 0;
  // The control database was lost: it is to be filled from snapshot and log.
  bool database_lost = false;
  // With --from-snapshot, for a job that has no snapshot of its own yet; else null.
  std::unique_ptr<InitialValues> initial;
};

// Opens the store and the control database of a process whose data directory is locked, checks that both are
// this job's and no other server's, and raises the cluster epoch. The process' flags are then those with
// which the job began, where a worker's script proposed some. Leftovers of writers are removed from the
// store.
//
// Blocks on disk and store. InvalidArgument and FailedPrecondition name the flag that leads to another job's
// data; DataLoss if there are snapshots and none of their manifests verifies. Nothing is saved before the
// checks are done, but the job's number in a new database.
absl::StatusOr<JobOnDisk> OpenJob(ServerProcess* process);

}  // namespace recon
