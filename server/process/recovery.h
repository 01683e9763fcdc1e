#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>

#include "absl/status/statusor.h"
#include "common/metrics/metrics.h"
#include "common/snapshot/control_state.h"
#include "common/storage/file_system.h"
#include "common/storage/object_store.h"
#include "proto/manifest.pb.h"
#include "server/data_plane/param_server.h"
#include "server/durability/log_reader.h"

namespace recon {

// What is recovered, and from where. The pointers must outlive the call.
struct RecoveryTarget {
  ParamServer* params = nullptr;
  ObjectStore* store = nullptr;
  FileSystem* files = nullptr;
  std::string log_directory;
  Metrics* metrics = nullptr;
};

// What a server recovers from: the newest snapshot that verifies, and what its push log has beyond it.
struct RecoveryOptions {
  // The place whose shards are restored, of so many.
  uint32_t server = 0;
  uint32_t servers = 1;
  // The push log was written with --durability sync.
  bool synced = false;
  // Called before a snapshot's values are loaded; an error sets the snapshot aside as damage in it does.
  std::function<absl::Status(const Manifest&)> before_load;
  // Called with the snapshot that was restored, before the log is replayed. False ends the recovery there.
  std::function<absl::StatusOr<bool>(const Manifest&)> restored;
  // Called in place of the replay when the push log cannot go on from that snapshot: it is of other shards
  // (another number of servers), or `log_is_ours` is false.
  std::function<absl::Status(const Manifest&)> leave_log;
  bool log_is_ours = true;
};

struct Recovered {
  std::optional<Manifest> snapshot;  // None: there is none at all.
  std::optional<LogEnd> replayed;    // None: nothing was replayed.
};

// Restores target.params, which has no log yet. Records of the log that are not pushes are added to
// `control`. Blocks on disk and store. DataLoss if there are snapshots and none verifies; FailedPrecondition
// for a log that goes on from a snapshot that is not there.
absl::StatusOr<Recovered> Recover(const RecoveryOptions& options, const RecoveryTarget& target,
                                  ControlState* control);

// FailedPrecondition if the push log has pushes. Without a snapshot there is nothing that it could go on
// from. `directory` and `hint` are for the message: where there is no snapshot, and what to look at.
absl::Status CheckNoPushesInLog(FileSystem* files, const std::string& log_directory,
                                const std::string& directory, const std::string& hint);

}  // namespace recon
