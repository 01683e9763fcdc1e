#pragma once

#include <cstdint>
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

// What a place was recovered from.
struct RecoveredPlace {
  uint64_t generation = 0;  // The snapshot; 0: there is none.
  // There was no log, or only a part of one, that leads further from that snapshot: the place may have had
  // more.
  bool lost = false;
  bool went_back = false;  // With the whole job.
};

// The snapshot from which a place came back that has lost something; 0: none did. It has done so until the
// job has another snapshot, however often its server is started, and takes no pushes before. `known`: what
// this returned last, which is to be kept.
uint64_t LostAt(uint64_t known, const RecoveredPlace& place);

// Restores the place's shards from the newest snapshot and, where the data directory is that place's, its
// push log. Where there is no snapshot yet, the values are those of the snapshot that the job begins with, if
// there is one. `target.params` has the model and no log yet; `parts` hears which snapshot it was.
// `directory` is where the store is, `synced` that the log was written with --durability sync.
// FailedPrecondition for a log that goes on from a snapshot that is not there.
//
// Where the assignment says that the job goes back, and the newest snapshot is not of its history yet, the
// shards are those of the snapshot that it names. The log's records stay behind; what is logged from then on
// has sequences beyond theirs. Again is no harm, until a snapshot of that history is published.
//
// `lost_at`: as LostAt() said when the server was started last.
absl::StatusOr<RecoveredPlace> RecoverPlace(const Assignment& assignment, const std::string& directory,
                                            bool synced, uint64_t lost_at, const RecoveryTarget& target,
                                            PartWriter* parts);

}  // namespace recon
