#pragma once

#include <string>

#include "absl/status/statusor.h"
#include "proto/cluster.pb.h"
#include "server/data_plane/param_server.h"
#include "server/process/part_writer.h"
#include "server/process/recovery.h"

namespace recon {

// From an assignment to the state that it speaks of. All of it blocks on disk and store.

// Of the parameters of that place, but for who hears of deliveries. InvalidArgument for a place that is none.
absl::StatusOr<ParamServer::Options> PlaceOptions(const Assignment& assignment);

// Restores the place's shards from the newest snapshot and, where the data directory is that place's, its
// push log. Where there is no snapshot yet, the values are those of the snapshot that the job begins with, if
// there is one. `target.params` has the model and no log yet; `parts` hears which snapshot it was.
// `directory` is where the store is, `synced` that the log was written with --durability sync.
// FailedPrecondition for a log that goes on from a snapshot that is not there.
absl::Status RecoverPlace(const Assignment& assignment, const std::string& directory, bool synced,
                          const RecoveryTarget& target, PartWriter* parts);

}  // namespace recon
