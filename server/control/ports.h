#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "common/base/ids.h"
#include "common/optim/apply_rules.h"
#include "common/snapshot/control_state.h"
#include "common/tensor/param_layout.h"
#include "proto/cluster.pb.h"
#include "proto/control.pb.h"
#include "server/cluster/servers_state.h"
#include "server/data_plane/param_stats.h"
#include "server/data_plane/step_members.h"

// All that the coordinator sees of the server around it. A server gives it adapters of its own classes
// (lane_coordinator.h); tests and the simulation give it fakes.
//
// Threads: the coordinator calls these on the control lane, and what they call back runs on the control lane,
// never inside the call that it was given to. Whoever implements them need not expect calls at the same time.
namespace recon {

// When something happens, by both clocks of common/base/clock.h.
struct Moment {
  absl::Time now;   // For decisions: never jumps.
  absl::Time wall;  // The time of day, for what is stored and shown.
};

// What the push log takes and may take; all 0 and false without a log.
struct LogUse {
  uint64_t disk_bytes = 0;
  uint64_t budget_bytes = 0;
  bool full = false;             // Pushes wait until a snapshot has made room.
  bool awaits_snapshot = false;  // No push is taken before there is a snapshot.
};

// The parameters of this server, and the rules by which pushes change them. The methods mean what
// ParamServer's of the same names mean.
class DataPlaneControl {
 public:
  virtual ~DataPlaneControl() = default;
  // Null before DefineModel().
  virtual std::shared_ptr<const ParamLayout> layout() const = 0;
  virtual absl::Status DefineModel(const ModelSpec& model) = 0;
  virtual bool has_values() const = 0;
  // Only `worker` may send initial values from now on; `ready` is called once, when all of them are there.
  virtual void AwaitInitialValues(WorkerId worker, std::function<void()> ready) = 0;
  // As WorkersState's methods of these names.
  virtual void AwaitState(WorkerId worker, uint64_t upload,
                          std::function<void(uint64_t step, absl::Time now)> staged) = 0;
  virtual absl::Status CommitState(uint64_t upload) = 0;
  virtual uint64_t state_version() const = 0;
  virtual void SetClusterEpoch(uint64_t epoch) = 0;
  virtual ApplyRules rules() const = 0;
  // `took`: how long it was, whatever came of it; nothing else happens on the lane meanwhile.
  virtual absl::Status ChangeRules(const ApplyRules& rules, uint64_t first_step, absl::Duration* took) = 0;
  virtual LogUse log_use() const = 0;
  virtual ParamStats GetStats() const = 0;
  // Answers replies that have waited too long.
  virtual void Tick(absl::Time now) = 0;
};

// Snapshots of the whole job.
class Snapshots {
 public:
  virtual ~Snapshots() = default;
  // Called when a snapshot is published, or has failed, with the time then.
  using Done = std::function<void(const absl::Status& taken, absl::Time now)>;
  // `reason` is one word for the manifest.
  virtual void Take(const std::string& reason, Done done) = 0;
  // The job's last one: once it is published, the push log is left with what comes after it.
  virtual void TakeLast(Done done) = 0;
  // One that may take its time, and whose failure is only counted.
  virtual void TakeInBackground(const std::string& reason) = 0;
  // The newest one's state of the workers takes the place of what all servers have, under the number of an
  // upload.
  virtual void RestoreState(uint64_t upload, Done done) = 0;
  // Takes those that are due by their interval or by the length of the log.
  virtual void Tick(absl::Time now) = 0;
  virtual SnapshotStatus status() const = 0;
};

// The job's other servers, which have the rest of the parameters. The methods mean what Cluster's of the same
// names mean.
class OtherServers {
 public:
  virtual ~OtherServers() = default;
  // How many servers the job has, this one among them.
  virtual uint32_t servers() const = 0;
  virtual ServersState state() const = 0;
  virtual std::string Missing() const = 0;
  virtual void TellWaits(const std::string& waits_for) = 0;
  virtual void SetModel(const ModelSpec& model) = 0;
  virtual void BeginEpoch(uint64_t epoch) = 0;
  virtual void Admit(WorkerId worker, Incarnation incarnation, uint64_t next_step) = 0;
  virtual void Expel(WorkerId worker) = 0;
  virtual void AwaitInitialValues(WorkerId worker) = 0;
  // `staged`: as DataPlaneControl's, of each of these servers.
  virtual void AwaitState(WorkerId worker, uint64_t upload,
                          std::function<void(uint32_t server, uint64_t step, absl::Time now)> staged) = 0;
  virtual void Tick(absl::Time now) = 0;
  virtual std::vector<ServerAddress> Addresses() const = 0;
  virtual std::vector<ServerStatus> Status(absl::Time now) const = 0;
};

// The control state on stable storage. Every Save returns when the record is durable, or has failed.
class Journal {
 public:
  virtual ~Journal() = default;
  // A number above `last` that no server of this job has used before.
  virtual absl::StatusOr<uint64_t> NextClusterEpoch(uint64_t last) = 0;
  virtual absl::StatusOr<std::optional<JobRecord>> LoadJob() const = 0;
  virtual absl::Status SaveJob(const JobRecord& job) = 0;
  virtual absl::Status SavePolicy(const PolicyRecord& record) = 0;
  // The number of the worker of that name, given out when the name is new.
  virtual absl::StatusOr<WorkerId> WorkerIdFor(const std::string& name) = 0;
  // AlreadyExists if this split was completed before: the first record stays.
  virtual absl::Status SaveCompletion(const Completion& completion) = 0;
  virtual absl::StatusOr<std::vector<Completion>> LoadCompletions() const = 0;
};

// The parameters that a new job begins with, where it does not take its first worker's.
class ValuesSource {
 public:
  virtual ~ValuesSource() = default;
  // InvalidArgument if they are not of that model.
  virtual absl::Status Check(const ModelSpec& model) const = 0;
  // Fills the parameters of the model that the data plane has; `done` is called once.
  virtual void Load(std::function<void(const absl::Status& loaded)> done) = 0;
};

// What a coordinator is made of. All of it outlives the coordinator.
struct CoordinatorPorts {
  DataPlaneControl* params = nullptr;
  StepMembers* steps = nullptr;
  Snapshots* snapshots = nullptr;
  OtherServers* others = nullptr;  // Null where the job has one server.
  Journal* journal = nullptr;
};

}  // namespace recon
