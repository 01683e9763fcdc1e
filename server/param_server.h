#pragma once

#include <atomic>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/functional/any_invocable.h"
#include "absl/status/statusor.h"
#include "common/base/byte_chain.h"
#include "common/base/ids.h"
#include "common/base/lane.h"
#include "common/base/mutex.h"
#include "common/codec/frame.h"
#include "common/metrics/metrics.h"
#include "common/snapshot/snapshot_reader.h"
#include "common/tensor/param_layout.h"
#include "server/durability/push_log.h"
#include "server/store/apply_rules.h"
#include "server/store/shard.h"
#include "server/sync/staleness_gate.h"

namespace recon {

// A consistent cut of the whole state: of every frame and step closing it has all or nothing.
struct StateCut {
  uint64_t sequence = 0;
  uint64_t frontier_step = 0;
  // First record of the log that is needed beside it.
  uint64_t log_from = 1;
  // ParamServer::replay_seconds() then.
  double replay_seconds = 0;
  std::vector<ShardCut> shards;
};

// The data plane without gRPC: checks frames, orders them, delivers them to the lanes, and answers when
// the staleness bound lets the worker go on.
//
// Threads: every method is thread-safe. `done` callbacks run on a lane, on the caller's thread (errors),
// or on the thread that calls Tick() or changes membership; they must not block.
// Order: a frame and a step closing get their sequence number and their place in all lanes' queues at
// once, under one lock; so does a cut. That makes a cut consistent without stopping anyone. With a push log
// they go through it first, in its order: what is not in the log is not applied, and not acknowledged.
// Shutdown: BeginDrain(), then WaitUntilIdle(), then destroy.
class ParamServer {
 public:
  struct Options {
    ApplyRules rules;
    int lanes = 1;
    // Bit i: pushes may not use codec i.
    uint32_t refused_codecs = 0;
    // Frames that are neither applied nor answered may hold so many bytes; in BSP that is a step's of all
    // workers.
    uint64_t bytes_in_flight_max = UINT64_MAX;
    // Parameters and optimizer state may take so many bytes.
    uint64_t state_bytes_max = UINT64_MAX;
  };
  using Done = absl::AnyInvocable<void(absl::StatusOr<ByteChain> reply)>;
  using Taken = absl::AnyInvocable<void()>;

  struct WorkerStats {
    uint64_t pushes = 0;
    uint64_t next_step = 0;
    bool active = false;
    double staleness_mean = 0;  // In updates of a shard between the gradient's parameters and its apply.
    uint64_t staleness_max = 0;
  };
  struct Stats {
    uint64_t pushes = 0;
    uint64_t duplicates = 0;
    uint64_t sequence = 0;
    uint64_t frontier_step = 0;
    double recover_ms = 0;  // Process start to first acknowledged push; 0 until then.
    std::map<WorkerId, WorkerStats> workers;
  };

  // `metrics` must outlive the server.
  ParamServer(const Options& options, Metrics* metrics);
  ~ParamServer();

  // Lays out the model; once. ResourceExhausted if it needs more memory than there is. The values are
  // undefined until Restore() or Init frames bring them.
  absl::Status DefineModel(const ModelSpec& model);
  // Loads values, versions and ledgers, in parallel on the lanes. Blocks. On failure the state is
  // undefined and Restore() may be called again with another manifest.
  absl::Status Restore(const SnapshotReader& reader, const Manifest& manifest, bool parameters_only);

  // Brings a restored state up to date, record by record, in the order of the log; one thread. Blocks while
  // too much is under way. `rules` of the records that follow; EndReplay() returns when all are applied.
  // DataLoss for a record that is none of this model's, FailedPrecondition for another optimizer's.
  void BeginReplay(const ApplyRules& rules);
  absl::Status ReplayFrame(uint64_t sequence, const ByteChain& payload);
  void ReplayClosing(uint64_t sequence, const StepClosing& closing);
  void ReplayControl(uint64_t sequence);
  void EndReplay();

  // From now on pushes go through `log`, whose next record follows sequence(). Before frames come.
  void SetLog(std::unique_ptr<PushLog> log);
  // Not OK once the log has failed: nothing more is acknowledged, and the process should be started anew.
  absl::Status log_status() const;
  // Puts records of the control state (ControlRecord) into the log, in this order, and returns when they are
  // written. `written` is called with the sequence of each on the log's thread, before any later cut; without
  // a log, with the sequence that there is. Blocks on the disk.
  absl::Status RecordControl(const std::vector<std::string>& records,
                             const std::function<void(uint64_t sequence)>& written);
  // A snapshot is published that needs the log's records from `log_from` on. Blocks on the disk.
  void NoteSnapshot(uint64_t log_from);

  // Handles one frame: a pull, a push, or initial values. `taken` runs before `done` if a push is delivered
  // to the lanes and its reply may have to wait for other workers.
  void Handle(const ByteChain& bytes, absl::Time now, Taken taken, Done done);

  // Membership, as the coordinator decides it. A worker must be admitted before its frames are taken.
  // `next_step` is the first step it has no acknowledgement for.
  void Admit(WorkerId worker, Incarnation incarnation, uint64_t next_step);
  void Expel(WorkerId worker);
  // Whether others wait for it. Activate() returns the first step it may push.
  uint64_t Activate(WorkerId worker, uint64_t next_step);
  void Deactivate(WorkerId worker);
  // The worker has an acknowledgement of every step before `next_step`.
  void NoteAcknowledged(WorkerId worker, uint64_t next_step);

  // Only `worker` may send Init frames from now on. `ready` runs once, when all values are there.
  void AwaitInitialValues(WorkerId worker, std::function<void()> ready);
  bool has_values() const;

  // Cuts the state; `done` runs on a lane. All of it is in the log.
  void Cut(absl::AnyInvocable<void(StateCut)> done);

  // Answers replies that have waited too long. Call it a few times a second.
  void Tick(absl::Time now);

  // Refuses new frames and answers waiting ones with Unavailable.
  void BeginDrain();
  // False if frames were still being handled at the deadline.
  bool WaitUntilIdle(absl::Duration timeout);

  Stats GetStats() const;
  uint64_t sequence() const;
  // About the time that replaying all updates until now would take: reading them, and applying them on all
  // lanes that have shards.
  double replay_seconds() const;
  // Null before DefineModel().
  std::shared_ptr<const ParamLayout> layout() const;
  int state_planes() const { return StatePlanes(options_.rules.optimizer.kind); }

 private:
  struct Operation;
  struct Session;
  using OperationPtr = std::shared_ptr<Operation>;

  void SayOverload(const absl::Status& status, absl::Time now);
  // All of one payload; reads it, so it runs without the lock.
  absl::Status CheckContent(const Operation& op, size_t part) const;
  absl::Status CheckSender(const Operation& op) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  absl::Status CheckParts(const Operation& op) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  absl::Status CheckPush(const Operation& op) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void SequenceFrame(const OperationPtr& op) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void DeliverFrame(const OperationPtr& op) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void CloseSteps() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // The log has failed: no step is closed any more.
  void GiveUpWaiting(const absl::Status& log_status);
  void DeliverClosing(const StepClosing& closing) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void PostClosing(const StepClosing& closing);
  void SetShardRules(const ApplyRules* rules, bool drop_contributions);
  // Takes released replies out of waiting_.
  std::vector<OperationPtr> TakeReleased() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);

  // The lane's.
  bool AnswersAtOnce(const Operation& op) const;
  void ApplyPart(const OperationPtr& op, size_t part);
  void DeliverPart(const OperationPtr& op, size_t part);
  void Delivered(const OperationPtr& op);
  void RecordDelivery(const OperationPtr& op) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void Answer(const OperationPtr& op);
  void AnswerReleased(std::vector<OperationPtr> ops);
  void Gather(const OperationPtr& op);
  void Finish(const OperationPtr& op, const absl::Status& status);

  // Set in the constructor.
  const Options options_;
  struct Instruments;
  std::unique_ptr<Instruments> instruments_;

  mutable Mutex mu_;
  std::shared_ptr<const ParamLayout> layout_ ABSL_GUARDED_BY(mu_);
  // Filled by DefineModel() and not resized again; the shards themselves are lane only.
  std::vector<std::unique_ptr<Shard>> shards_;
  std::map<WorkerId, Session> sessions_ ABSL_GUARDED_BY(mu_);
  StalenessGate gate_ ABSL_GUARDED_BY(mu_);
  std::map<StalenessGate::Ticket, OperationPtr> waiting_ ABSL_GUARDED_BY(mu_);
  StalenessGate::Ticket next_ticket_ ABSL_GUARDED_BY(mu_) = 0;
  // BSP: workers whose push of a step is complete, for steps that are not closed.
  std::map<uint64_t, std::set<Shard::Contributor>> complete_ ABSL_GUARDED_BY(mu_);
  // BSP: first frame of each step that is not closed, and steps whose closing is on its way through the log.
  std::map<uint64_t, uint64_t> open_steps_ ABSL_GUARDED_BY(mu_);
  std::set<uint64_t> closings_in_log_ ABSL_GUARDED_BY(mu_);
  absl::Status log_status_ ABSL_GUARDED_BY(mu_);
  bool has_snapshot_ ABSL_GUARDED_BY(mu_) = false;
  uint64_t log_from_ ABSL_GUARDED_BY(mu_) = 0;  // Of the newest snapshot.
  uint64_t sequence_ ABSL_GUARDED_BY(mu_) = 0;
  uint64_t bytes_in_flight_ ABSL_GUARDED_BY(mu_) = 0;
  absl::Time overload_said_ ABSL_GUARDED_BY(mu_) = absl::InfinitePast();
  int operations_ ABSL_GUARDED_BY(mu_) = 0;
  bool has_values_ ABSL_GUARDED_BY(mu_) = false;
  bool draining_ ABSL_GUARDED_BY(mu_) = false;
  WorkerId initializer_ ABSL_GUARDED_BY(mu_);
  std::set<uint32_t> shards_to_init_ ABSL_GUARDED_BY(mu_);
  std::function<void()> on_initialized_ ABSL_GUARDED_BY(mu_);
  uint64_t pushes_ ABSL_GUARDED_BY(mu_) = 0;
  uint64_t duplicates_ ABSL_GUARDED_BY(mu_) = 0;
  double recover_ms_ ABSL_GUARDED_BY(mu_) = 0;

  std::atomic<uint64_t> apply_nanos_{0};
  // The replaying thread's until EndReplay(); shards refer to them until then.
  std::deque<ApplyRules> replay_rules_;
  // Set before frames come.
  std::unique_ptr<PushLog> log_;

  // Last: its destructor runs what is queued while the rest still exists.
  LanePool lanes_;
};

}  // namespace recon
