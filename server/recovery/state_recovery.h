#pragma once

#include <cstdint>
#include <string>

#include "absl/status/statusor.h"
#include "common/metrics/metrics.h"
#include "common/snapshot/control_state.h"
#include "common/snapshot/snapshot_reader.h"
#include "common/storage/file_system.h"
#include "server/data_plane/param_server.h"
#include "server/durability/log_reader.h"

namespace recon {

// What every server does to have its state again, the head and the others. All of it blocks.

// Restores a snapshot; it defines the model if nobody has yet. DataLoss if it is of another one.
absl::Status LoadInto(ParamServer* params, const SnapshotReader& reader, const Manifest& manifest);

// The workers' state of that snapshot takes the place of this server's part of what there is, under the
// number of an upload (WorkersState).
absl::Status RestoreWorkersState(ParamServer* params, ObjectStore* store, Generation generation,
                                 uint64_t upload);

// ReplayLog(), and says what it came to. `synced`: whether the log was written with --durability sync.
absl::StatusOr<LogEnd> ReplayAndReport(FileSystem* files, const std::string& directory,
                                       const Manifest& manifest, bool synced, ParamServer* params,
                                       ControlState* control, Metrics* metrics);
// Whether there is a push log, be it empty.
absl::StatusOr<bool> HasLog(FileSystem* files, const std::string& directory);
// Removes a push log's segments.
absl::Status RemoveLog(FileSystem* files, const std::string& directory);

}  // namespace recon
