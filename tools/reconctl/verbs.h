#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/base/host_port.h"
#include "common/base/ids.h"
#include "common/rpc/credentials.h"
#include "common/snapshot/snapshot_reader.h"
#include "server/durability/retention.h"

namespace recon {

class PolicySettings;

// The verbs of reconctl. Each prints its answer to standard output, as a table or (json) one JSON value,
// and returns what decides the exit code.

// How to reach the server.
struct ServerTarget {
  std::string address = LoopbackAddress(kDefaultPort);
  TlsFlags tls;
  bool json = false;
};

// What a verb's failure comes from, if it is that server and its or our certificates do not fit:
// InvalidArgument with the cause. Otherwise `status` itself.
absl::Status Explained(const ServerTarget& target, const absl::Status& status);

absl::Status ShowStatus(const ServerTarget& target);

// Changes how the workers of the running job agree.
absl::Status SetPolicy(const ServerTarget& target, const PolicySettings& settings);
// Shows progress until the job is finished or the server has not answered for `patience_seconds`.
absl::Status FollowStatus(const ServerTarget& target, double patience_seconds);

// What a job has gone through; see server/history/history.h.
struct HistoryTarget {
  ServerTarget server;
  std::string source;       // A data directory or HOST:PORT; empty: the server.
  std::string worker;       // Its series instead of the job's.
  std::string tensorboard;  // A directory: an event file is written there, and nothing shown.
  bool csv = false;
};
absl::Status ShowHistory(const HistoryTarget& target);
// Two jobs side by side.
struct CompareTarget {
  ServerTarget server;
  std::vector<std::string> sources;  // Two, as above.
  double loss = 0;                   // How long each took to come to it; 0: to what both have come to.
};
absl::Status CompareJobs(const CompareTarget& target);

// What the job's processes do, for some seconds: as a file for Perfetto or Chrome, and (`explain`) in three
// lines.
struct TraceTarget {
  ServerTarget server;
  double seconds = 10;
  std::string output;  // Empty: no file.
  bool explain = false;
};
absl::Status RecordTrace(const TraceTarget& target);

// Sets of processes: who is in them, who waits, and which calls wait for whom.
absl::Status ShowSets(const ServerTarget& target);
absl::Status ShowCompletions(const ServerTarget& target);
absl::Status TakeSnapshot(const ServerTarget& target);
absl::Status DrainServer(const ServerTarget& target);

// Takes a running job back: to a snapshot, to a sequence, or without some pushes; one of the three. Returns
// when the job goes on from there.
struct RollbackTarget {
  ServerTarget server;
  uint64_t generation = 0, sequence = 0;
  std::vector<std::string> pushes;  // WORKER:STEP.
  uint64_t incarnation = 0;         // Of the processes that made them; 0: the only one.
  bool keep_samples = false;
  bool dry_run = false;  // Only say what it would be.
};
absl::Status RollBackServer(const RollbackTarget& target);

// Snapshots of a directory, without a server. `generation` 0 means the newest.
struct SnapshotTarget {
  std::string directory;
  uint64_t generation = 0;
  bool json = false;
};

// That generation or, if `number` is 0, the newest; NotFound if there is none.
absl::StatusOr<Generation> OrNewest(uint64_t number, const SnapshotReader& reader,
                                    const std::string& directory);

absl::Status ListSnapshots(const SnapshotTarget& target);
absl::Status ShowSnapshot(const SnapshotTarget& target);
// One generation, or (generation 0) all of them.
absl::Status VerifySnapshots(const SnapshotTarget& target);

// What the values of a snapshot compress to: by tensor, and by byte plane of parameters and state.
absl::Status ShowSnapshotStats(const SnapshotTarget& target);

// Keeps one generation from being removed by any rule, or (`remove`) no longer.
absl::Status PinSnapshot(const SnapshotTarget& target, bool remove);

// Removes the snapshots that the rules do not keep; only says which, if `dry_run`. Not while a server runs.
struct PruneTarget {
  std::string directory;
  RetentionRules keep;
  bool dry_run = false, json = false;
  bool no_server = false;  // The user says so; needed where no lock can.
};
absl::Status PruneSnapshots(const PruneTarget& target);

// What changed between two snapshots, tensor by tensor; `other` is the directory of the second, if another.
struct DiffTarget {
  std::string directory, other;
  uint64_t before = 0, after = 0;
  bool json = false;
};
absl::Status DiffSnapshots(const DiffTarget& target);

// To a safetensors file or, with `file_bytes`, to a directory of files of about that size and an index.
struct ExportTarget {
  std::string directory, output;
  uint64_t generation = 0, file_bytes = 0;
  bool with_state = false;
  bool torch = false;  // For torch.load(); otherwise safetensors.
};
absl::Status ExportSnapshot(const ExportTarget& target);

// Safetensors files, an index or a directory of them as the only snapshot of a directory: parameters for
// --from-snapshot. `model`: as a worker's --model, then its tensors, order and groups; or any other name.
struct ImportTarget {
  std::vector<std::string> files;
  std::string output, model;
  std::vector<std::string> renames, skips, carries, aliases;  // As NameRules has them.
};
absl::Status ImportSnapshot(const ImportTarget& target);

// One tensor's values to standard output, in NumPy's format.
absl::Status CatTensor(const SnapshotTarget& target, const std::string& name);

// The state after a logged push, as the only snapshot of another directory.
struct RestoreTarget {
  std::string directory, log, output;
  uint64_t sequence = 0;
};
absl::Status RestoreSnapshot(const RestoreTarget& target);

}  // namespace recon
