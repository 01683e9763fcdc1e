#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "common/base/ids.h"
#include "proto/control.pb.h"

namespace rocksdb {
class DB;
}  // namespace rocksdb

namespace recon {

// The control state that must outlive the server, in RocksDB: cluster epoch, job, workers' numbers and
// completed splits. Every write is synced before it returns, so that nothing is lost when the process or the
// machine dies.
//
// Threads: thread-safe, as RocksDB is. Blocks on the disk: never call it on a gRPC thread.
// Keys: "epoch", "job_id", "job", "worker/<name>", "done/<kind>/<data epoch>/<split>" (numbers as 8 hex
// digits).
class ControlDb {
 public:
  static absl::StatusOr<std::unique_ptr<ControlDb>> Open(const std::string& directory);
  ~ControlDb();

  // Raises the cluster epoch by one, beyond `last` at least, and returns it; 1 in a new database.
  absl::StatusOr<uint64_t> NextClusterEpoch(uint64_t last = 0);

  // The job's random number, not 0. A database that has none yet takes `id`, or a new one if that is 0.
  absl::StatusOr<uint64_t> JobId(uint64_t id);

  absl::StatusOr<std::optional<JobRecord>> LoadJob() const;
  absl::Status SaveJob(const JobRecord& job);

  // The number of the worker of that name, given out when the name is new.
  absl::StatusOr<WorkerId> WorkerIdFor(const std::string& name);

  // AlreadyExists if this split was completed before: the first record stays.
  absl::Status SaveCompletion(const Completion& completion);
  // In the order of kind, data epoch and split.
  absl::StatusOr<std::vector<Completion>> LoadCompletions() const;

 private:
  explicit ControlDb(std::unique_ptr<rocksdb::DB> db);
  absl::Status Put(const std::string& key, const std::string& value);
  absl::StatusOr<std::optional<std::string>> Get(const std::string& key) const;

  std::unique_ptr<rocksdb::DB> db_;
};

}  // namespace recon
