#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <tuple>
#include <vector>

#include "common/metrics/metrics.h"
#include "server/control/coordinator.h"
#include "server/control/ports.h"
#include "server/sync/reply_queue.h"
#include "server/sync/staleness_gate.h"
#include "tools/bench/simulated_grants.h"
#include "tools/bench/simulated_time.h"
#include "tools/bench/simulation.h"

// A server of a simulated job: the real coordinator, and ports that keep in memory what a server keeps on
// disks and in a store.
namespace recon {

// What outlives the server's process.
struct SimulatedDisk {
  uint64_t cluster_epoch = 0;
  uint64_t generation = 0;  // Of the newest snapshot.
  uint64_t frontier = 0;
  std::optional<JobRecord> job;
  std::map<std::string, WorkerId> workers;
  std::map<ControlState::SplitKey, Completion> completions;
  // Beside the completions, to check them: all that were ever acknowledged.
  std::set<ControlState::SplitKey> completed;
  // Pushes that are in the parameters: worker, process, step.
  std::set<std::tuple<WorkerId, uint64_t, uint64_t>> applied;
};

// The data plane: a push is one event, and changes parameters that nobody looks at.
class SimulatedDataPlane final : public DataPlaneControl, public StepMembers {
 public:
  // What a push comes to: it is acknowledged; its worker has to register; its step was closed without it.
  enum class Answer { kOk, kRegister, kLate };
  using Done = std::function<void(Answer answer)>;

  SimulatedDataPlane(const SimulationOptions& options, uint64_t cluster_epoch, SimulatedDisk* disk,
                     SimulatedTime* time);

  // `done` is called once: at once, or when the bound lets the worker go on; never if the server dies.
  void Push(const WorkerIdentity& sender, uint64_t step, Done done);
  void BringValues(WorkerId worker);
  uint64_t pushes() const { return pushes_; }

  std::shared_ptr<const ParamLayout> layout() const override { return layout_; }
  absl::Status DefineModel(const ModelSpec& model) override;
  bool has_values() const override { return has_values_; }
  void AwaitInitialValues(WorkerId worker, std::function<void()> ready) override;
  void AwaitState(WorkerId, uint64_t, std::function<void(uint64_t step, absl::Time now)>) override {}
  absl::Status CommitState(uint64_t) override { return absl::OkStatus(); }
  uint64_t state_version() const override { return 0; }
  void SetClusterEpoch(uint64_t epoch) override { cluster_epoch_ = epoch; }
  ApplyRules rules() const override { return ApplyRules(); }
  absl::Status ChangeRules(const ApplyRules& rules, uint64_t first_step, absl::Duration* took) override;
  void SetQuorum(uint32_t, std::optional<absl::Duration>) override {}
  LogUse log_use() const override { return LogUse(); }
  ParamStats GetStats() const override;
  void Tick(absl::Time) override {}

  void Admit(WorkerId worker, Incarnation incarnation, uint64_t next_step) override;
  void Expel(WorkerId worker) override;
  uint64_t Activate(WorkerId worker, uint64_t next_step, bool resumes) override;
  void Deactivate(WorkerId worker) override;
  void Park(WorkerId worker) override;
  bool active(WorkerId worker) const override { return gate_.active(worker); }
  bool awaited(WorkerId worker) const override {
    return gate_.active(worker) && gate_.next_step(worker) <= gate_.frontier();
  }
  void NoteAcknowledged(WorkerId worker, uint64_t next_step) override;
  uint64_t PushesOf(WorkerId worker) const override;
  bool Knows(Incarnation process) const override;
  uint64_t frontier() const override { return gate_.frontier(); }
  void SkipTo(uint64_t frontier) override;

 private:
  struct Session {
    uint64_t process = 0;
    uint64_t pushes = 0;
    bool parked = false;
    uint64_t first_step = 0;  // Since it was parked.
    // Beside the gate, to check it: the step from which it takes part.
    uint64_t takes_part_from = 0;
  };
  struct Waiting {
    WorkerId worker;
    uint64_t step;
    Done done;
  };

  // What has come of its steps that are not closed counts for nothing; its replies that wait.
  std::vector<Waiting> ForgetOpenSteps(WorkerId worker);
  void GateMoved();
  // By what was applied, not by what the gate believes: everyone who takes part has pushed the last step that
  // the bound asks for, if that is not from before its time.
  void CheckBound(uint64_t step) const;

  const SimulationOptions options_;
  SimulatedDisk* const disk_;
  SimulatedTime* const time_;
  uint64_t cluster_epoch_;
  std::shared_ptr<const ParamLayout> layout_;
  bool has_values_;
  WorkerId initializer_;
  std::function<void()> ready_;
  StalenessGate gate_;
  ReplyQueue queue_;
  std::map<WorkerId, Session> sessions_;
  std::map<ReplyQueue::Ticket, Waiting> waiting_;
  ReplyQueue::Ticket next_ticket_ = 0;
  uint64_t pushes_ = 0;
};

class SimulatedJournal final : public Journal {
 public:
  SimulatedJournal(const SimulationOptions& options, SimulatedDisk* disk, SimulatedTime* time)
      : options_(options), disk_(disk), time_(time) {}

  absl::StatusOr<uint64_t> NextClusterEpoch(uint64_t last) override;
  absl::StatusOr<std::optional<JobRecord>> LoadJob() const override { return disk_->job; }
  absl::Status SaveJob(const JobRecord& job) override;
  absl::Status SavePolicy(const PolicyRecord&) override { return absl::OkStatus(); }
  absl::StatusOr<WorkerId> WorkerIdFor(const std::string& name) override;
  absl::Status SaveCompletion(const Completion& completion) override;
  absl::StatusOr<std::vector<Completion>> LoadCompletions() const override;

 private:
  const SimulationOptions options_;
  SimulatedDisk* const disk_;
  SimulatedTime* const time_;
};

// Snapshots take a while, and some of them fail where calls are lost.
class SimulatedSnapshots final : public Snapshots {
 public:
  SimulatedSnapshots(const SimulationOptions& options, SimulatedDisk* disk, SimulatedTime* time)
      : options_(options), disk_(disk), time_(time) {}

  void Take(const std::string& reason, Done done) override;
  void TakeLast(Done done) override { Take("final", std::move(done)); }
  void TakeInBackground(const std::string& reason) override;
  void RestoreState(uint64_t, Done) override {}
  void Tick(absl::Time) override {}
  SnapshotStatus status() const override;

 private:
  const SimulationOptions options_;
  SimulatedDisk* const disk_;
  SimulatedTime* const time_;
  // A snapshot that is under way dies with the server.
  std::shared_ptr<bool> alive_ = std::make_shared<bool>(true);
};

// One process of the server, from its start to its death.
class SimulatedServer {
 public:
  // Begins a cluster epoch, and takes up the job that the disk has. Both outlive the server.
  SimulatedServer(const SimulationOptions& options, SimulatedDisk* disk, SimulatedTime* time);

  // Worker's calls, as the control service has them.
  absl::StatusOr<RegisterReply> Register(const RegisterRequest& request);
  absl::StatusOr<HeartbeatReply> Heartbeat(const HeartbeatRequest& request);
  absl::StatusOr<AcquireReply> Acquire(const AcquireRequest& request);
  absl::StatusOr<CompleteReply> Complete(const CompleteRequest& request);
  absl::StatusOr<RejoinReply> Rejoin(const RejoinRequest& request);
  void Tick();
  bool finished() const { return coordinator_.finished(); }
  SimulatedDataPlane* data_plane() { return &data_plane_; }

 private:
  CoordinatorPorts ports();

  const SimulationOptions options_;
  SimulatedTime* const time_;
  SimulatedDataPlane data_plane_;
  SimulatedJournal journal_;
  SimulatedSnapshots snapshots_;
  Metrics metrics_;
  Coordinator coordinator_;
  SimulatedGrants grants_;
  std::optional<Lease> last_grant_;  // For a mistake that is planted.
};

}  // namespace recon
