#pragma once

#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "common/rpc/credentials.h"

namespace recon {

// The verbs of reconctl. Each prints its answer to standard output, as a table or (json) one JSON value,
// and returns what decides the exit code.

// How to reach the server.
struct ServerTarget {
  std::string address = "127.0.0.1:7070";
  TlsFlags tls;
  bool json = false;
};

absl::Status ShowStatus(const ServerTarget& target);
// Shows progress until the job is finished or the server has not answered for `patience_seconds`.
absl::Status FollowStatus(const ServerTarget& target, double patience_seconds);
absl::Status ShowCompletions(const ServerTarget& target);
absl::Status TakeSnapshot(const ServerTarget& target);
absl::Status DrainServer(const ServerTarget& target);

// Snapshots of a directory, without a server. `generation` 0 means the newest.
struct SnapshotTarget {
  std::string directory;
  uint64_t generation = 0;
  bool json = false;
};

absl::Status ListSnapshots(const SnapshotTarget& target);
absl::Status ShowSnapshot(const SnapshotTarget& target);
// One generation, or (generation 0) all of them.
absl::Status VerifySnapshots(const SnapshotTarget& target);

}  // namespace recon
