#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "common/base/ids.h"
#include "common/snapshot/control_state.h"
#include "proto/cluster.pb.h"
#include "proto/job.pb.h"
#include "server/durability/control_rows.h"
#include "server/durability/rollback_rows.h"

namespace recon {

// The control state that must outlive the server, in RocksDB: cluster epoch, job, workers' numbers and
// completed splits. Every write is synced before it returns, so that nothing is lost when the process or the
// machine dies. Snapshots and the push log have all of it but the epoch, too: a database that is lost is
// filled again from them.
//
// Threads: thread-safe, as RocksDB is. Blocks on the disk: never call it on a gRPC thread.
// Errors: DataLoss for what is damaged. A write that fails ends the process (control_db_files.h).
// Keys: "epoch", "job_id", "job", "servers", "place", "policy", "settings", "rollback", "rollback_next",
// "worker/<name>",
// "done/<kind>/<data epoch>/<split>" (numbers as 8 hex digits).
class ControlDb {
 public:
  // Reads all of it: DataLoss if something in it is damaged.
  static absl::StatusOr<std::unique_ptr<ControlDb>> Open(const std::string& directory);

  // Whether it was empty when it was opened.
  bool created() const { return created_; }

  // Raises the cluster epoch by one, beyond `last` at least, and returns it; 1 in a new database.
  absl::StatusOr<uint64_t> NextClusterEpoch(uint64_t last = 0);
  // The last one that was given out; 0 if there was none.
  absl::StatusOr<uint64_t> ClusterEpoch() const;

  // The job's random number, not 0. A database that has none yet takes `id`, or a new one if that is 0.
  absl::StatusOr<uint64_t> JobId(uint64_t id);

  absl::StatusOr<std::optional<JobRecord>> LoadJob() const;
  absl::Status SaveJob(const JobRecord& job);

  // The number of the worker of that name, if it has one.
  absl::StatusOr<std::optional<WorkerId>> FindWorker(const std::string& name) const;
  // Gives out a number to a name that has none.
  absl::StatusOr<WorkerId> AddWorker(const std::string& name);

  // AlreadyExists if this split was completed before: the first record stays.
  absl::Status SaveCompletion(const Completion& completion);
  // Those splits are to be done again. All of it or nothing.
  absl::Status DropCompletions(const std::vector<Completion>& completions);
  // In the order of kind, data epoch and split.
  absl::StatusOr<std::vector<Completion>> LoadCompletions() const;

  // Which server has which place; and what another server than the head is. Empty if nothing was saved.
  absl::StatusOr<ServerTable> LoadServers() const;
  absl::Status SaveServers(const ServerTable& table);
  absl::StatusOr<ServerPlace> LoadPlace() const;
  absl::Status SavePlace(const ServerPlace& place);

  // The policy that was set while the job ran; empty if none was.
  absl::StatusOr<PolicyRecord> LoadPolicy() const;
  absl::Status SavePolicy(const PolicyRecord& record);

  // The snapshot that this server came back from without what its log had beyond it; 0: it never did.
  absl::StatusOr<uint64_t> LoadLost() const;
  absl::Status SaveLost(uint64_t generation);

  // What the server was told when it was last started, for its log: a text; empty if there is none.
  absl::StatusOr<std::string> LoadSettings() const;
  absl::Status SaveSettings(const std::string& text);

  // The rollback that is to be done, and the last one.
  RollbackRows& rollbacks() { return rollbacks_; }

  absl::StatusOr<ControlState> Load() const;
  // Adds what is missing. DataLoss if `state` and the database contradict each other.
  absl::Status Merge(const ControlState& state);

 private:
  explicit ControlDb(std::unique_ptr<ControlRows> rows);

  const std::unique_ptr<ControlRows> rows_;
  RollbackRows rollbacks_;
  bool created_ = false;
};

}  // namespace recon
