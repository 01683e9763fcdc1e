#pragma once

#include <atomic>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/functional/any_invocable.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "common/base/alarm.h"
#include "common/base/byte_chain.h"
#include "common/base/ids.h"
#include "common/base/lane_pool.h"
#include "common/base/mutex.h"
#include "common/base/pool_allocator.h"
#include "common/codec/frame.h"
#include "common/metrics/metrics.h"
#include "common/optim/apply_rules.h"
#include "common/snapshot/snapshot_reader.h"
#include "common/tensor/param_layout.h"
#include "common/transport/transport.h"
#include "server/durability/push_log.h"
#include "server/store/shard.h"
#include "server/sync/staleness_gate.h"
#include "server/sync/step_quorum.h"

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
  // Pages that pushes may come to keep besides, of versions that gradients are compared with.
  uint64_t pages_of_versions = 0;
};

// What the head's ParamServer tells the job's other servers; see common/DESIGN.md, "Many servers". Called
// under its lock, in the order in which it has to take effect everywhere: must not block, nor call it back.
class Followers {
 public:
  virtual ~Followers() = default;
  // A step is closed with these contributors, in the head's log, for these shards of that server.
  virtual void OnClosing(uint32_t server, const StepClosing& closing) = 0;
  // As StalenessGate::Follow() takes it.
  virtual void OnFrontier(uint64_t frontier, bool anyone_active) = 0;
};

// The data plane without gRPC: checks frames, orders them, delivers them to the lanes, and answers when
// the staleness bound lets the worker go on.
//
// Threads: every method is thread-safe. `done` callbacks run on a lane, on the caller's thread (errors),
// or on the thread that calls Tick() or changes membership; they must not block. `taken` callbacks run there,
// too, some of them under the lock: they must not call back.
// Order: a frame and a step closing get their sequence number and their place in all lanes' queues at
// once, under one lock; so does a cut. That makes a cut consistent without stopping anyone. With a push log
// they go through it first, in its order: what is not in the log is not applied, and not acknowledged.
// Shutdown: BeginDrain(), then WaitUntilIdle(), then destroy.
class ParamServer {
 public:
  struct Options {
    ApplyRules rules;
    // Whose state is kept for each parameter; by default that of the rules' optimizer.
    std::optional<StateOwner> state;
    int apply_threads = 1;
    // Bit i: pushes may not use codec i.
    uint32_t refused_codecs = 0;
    // Frames that are neither applied nor answered may hold so many bytes; in BSP that is a step's of all
    // workers.
    uint64_t bytes_in_flight_max = UINT64_MAX;
    // Parameters, optimizer state and versions that gradients are compared with may take so many bytes, and
    // those frames half of memory_left().
    uint64_t memory_bytes = UINT64_MAX;

    // What the process had run for when this server began: 0, unless it began anew.
    absl::Duration began;

    // Which of the job's servers this is (0 is the head), and how many there are: it has the shards that
    // ShardAssignment gives it.
    uint32_t server = 0;
    uint32_t servers = 1;
    // The head's, if there are others.
    Followers* followers = nullptr;
    // Of the others: parts of a push of a bounded job are delivered to these shards; the head decides when
    // the reply may go out. `push_parts`: of the whole push, on all servers. Called under the lock.
    std::function<void(WorkerId, Incarnation, uint64_t step, absl::Span<const uint32_t> shards,
                       uint32_t push_parts)>
        report_delivery;
  };
  using Done = absl::AnyInvocable<void(absl::StatusOr<ByteChain> reply)>;
  using Taken = absl::AnyInvocable<void()>;

  struct WorkerStats {
    uint64_t pushes = 0;
    uint64_t next_step = 0;
    bool active = false;
    uint64_t staleness_pushes = 0;  // Those whose staleness is known: the mean's.
    double staleness_mean = 0;      // In updates of a shard between the gradient's parameters and its apply.
    uint64_t staleness_max = 0;
    std::vector<uint64_t> staleness_counts;  // As MemberStatus has them.
    double waiting_seconds = 0;              // Replies waited for other workers' pushes, the sum.
    uint64_t late_steps = 0;                 // Closed without its push, which a quorum did not wait for.
  };
  struct Stats {
    uint64_t pushes = 0;
    uint64_t updates = 0;  // Of the shard that had most, since the job began.
    uint64_t duplicates = 0;
    uint64_t sequence = 0;
    uint64_t frontier_step = 0;
    double recover_ms = 0;     // From the server's begin to its first acknowledged push; 0 until then.
    double first_push_ms = 0;  // The same without the time in which no worker had come.
    std::map<WorkerId, WorkerStats> workers;
  };

  // `metrics` must outlive the server.
  ParamServer(const Options& options, Metrics* metrics);
  ~ParamServer();

  // Lays out the model; once. ResourceExhausted if this server's shards need more memory than there is. The
  // values are undefined until Restore() or Init frames bring them.
  absl::Status DefineModel(const ModelSpec& model);
  // Loads values, versions and ledgers of this server's shards, in parallel on the lanes. Blocks. On failure
  // the state is undefined and Restore() may be called again with another manifest.
  absl::Status Restore(const SnapshotReader& reader, const Manifest& manifest);
  // The values a new job begins with: those that `pages_of` returns for each of this server's shards, on many
  // threads at once. Blocks. On failure they are undefined, and it may be called again. Not while Init frames
  // come.
  absl::Status LoadInitialValues(
      const std::function<absl::StatusOr<std::vector<PageRef>>(uint32_t shard)>& pages_of);

  // Brings a restored state up to date, record by record, in the order of the log; one thread. Blocks while
  // too much is under way. `rules` of the records that follow; EndReplay() returns when all are applied.
  // DataLoss for a record that is none of this model's, FailedPrecondition for another optimizer's.
  void BeginReplay(const ApplyRules& rules);
  absl::Status ReplayFrame(uint64_t sequence, const ByteChain& payload);
  absl::Status ReplayClosing(uint64_t sequence, const StepClosing& closing);
  void ReplayFreeze(uint64_t sequence);
  void ReplayControl(uint64_t sequence);
  void EndReplay();
  // Records to come of these pushes change nothing, as if they had never been sent; until BeginHistory().
  void LeaveOut(LoggedPushes pushes);
  // A rollback: records go on after `sequence`, the last of the history before, and synchronous steps from
  // `first_step`, which nobody has begun; what was kept of earlier ones is dropped. After EndReplay().
  void BeginHistory(uint64_t sequence, uint64_t first_step);

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
  // Whether a snapshot should come early, so that records of the log can go: it has grown by a quarter of its
  // budget since the last one, or is full.
  bool log_wants_snapshot() const;
  // The log is full: pushes are told to wait until a snapshot has made room.
  bool log_full() const { return log_ != nullptr && log_->full(); }
  uint64_t log_disk_bytes() const { return log_ == nullptr ? 0 : log_->disk_bytes(); }
  uint64_t log_budget_bytes() const { return log_ == nullptr ? 0 : log_->budget_bytes(); }
  // Removes what only a snapshot before the newest would need. Blocks on the disk.
  void TrimLogToNewest();
  // With a log no push is taken before there is a snapshot that it goes on from: one has to come, whatever
  // was noted.
  void AwaitSnapshot();
  // It has values, and takes no push for that reason.
  bool awaits_snapshot() const;

  // Handles one frame: a pull, a push, or initial values. `taken` may run before `done` if a push is
  // delivered to the lanes and its reply has to wait for other workers: at once if some have not begun its
  // step, else when it has waited for limits::kInStepPatience.
  void Handle(const ByteChain& bytes, absl::Time now, Taken taken, Done done, RequestContext context = {});

  // Membership, as the coordinator decides it. A worker must be admitted before its frames are taken.
  // `next_step` is the first step it has no acknowledgement for.
  void Admit(WorkerId worker, Incarnation incarnation, uint64_t next_step);
  // Workers can come from now on: until then they are not what a first push waits for.
  void NoteReady();
  void Expel(WorkerId worker);
  // Whether others wait for it. Activate() returns the first step it may push: not one that others have
  // closed in part, unless it `resumes` a push that it has begun.
  uint64_t Activate(WorkerId worker, uint64_t next_step, bool resumes = false);
  void Deactivate(WorkerId worker);
  bool active(WorkerId worker) const;
  // No step waits for it, or has a part of its pushes: those are answered with Aborted until it is activated.
  // Of synchronous jobs (bound 0), and of a worker that has begun no push; else nothing happens.
  void Park(WorkerId worker);
  // From now on a synchronous step is closed without those whose push is awaited when `workers` have pushed
  // it and `grace` has passed (StepQuorum): they are parked. 0: all are waited for. The head.
  void SetQuorum(uint32_t workers, std::optional<absl::Duration> grace);
  // The worker has an acknowledgement of every step before `next_step`.
  void NoteAcknowledged(WorkerId worker, uint64_t next_step);

  // Frames of an earlier epoch are refused from now on: their workers register again.
  void SetClusterEpoch(uint64_t epoch);

  // Goes on by other rules, as a server that is started anew with them does, in a new epoch: `rules` has it.
  // Waiting replies are answered with Unavailable, parts of steps that are not closed are forgotten (their
  // workers send them again), and steps go on beyond all that were pushed. The push log begins a segment.
  // Blocks on lanes and disk for as long as what is under way takes. FailedPrecondition, with nothing
  // changed, if the optimizer needs state that is not kept, or there are other servers; Unavailable if what
  // is under way takes too long.
  // `first_step`: nobody begins one before it.
  absl::Status ChangeRules(const ApplyRules& rules, uint64_t first_step = 0);
  // Those that frames are sequenced by now.
  ApplyRules rules() const;

  // The head: parts of a push, which has `push_parts` on all servers together, are delivered to these shards
  // of another server.
  void NoteDelivered(WorkerId worker, Incarnation incarnation, uint64_t step,
                     const std::vector<uint32_t>& shards, uint32_t push_parts);
  // A server has begun anew: it has none of what it was sent of steps that are not closed.
  void ForgetDeliveriesTo(uint32_t server);
  // Another server has come so far: no step before `frontier` is asked of anyone.
  void SkipTo(uint64_t frontier);
  // The others: what the head says, in its order. Whoever waits for a step that is closed without him is told
  // so.
  void FollowClosing(const StepClosing& closing);
  void FollowFrontier(uint64_t frontier, bool anyone_active);

  // Only `worker` may send Init frames from now on. `ready` runs once, when all values are there.
  void AwaitInitialValues(WorkerId worker, std::function<void()> ready);
  bool has_values() const;

  // Cuts the state; gradients of versions before are not compared with them any more, where there is a log.
  // `done` runs on a lane. All of it is in the log. `in_order` (may be empty) runs under the
  // lock, where the cut is among all closings.
  void Cut(absl::AnyInvocable<void(StateCut)> done, std::function<void()> in_order = nullptr);

  // Answers replies that have waited too long. Call it a few times a second.
  void Tick(absl::Time now);

  // Refuses new frames and answers waiting ones with Unavailable.
  void BeginDrain();
  // False if frames were still being handled at the deadline.
  bool WaitUntilIdle(absl::Duration timeout);

  Stats GetStats() const;
  // What the state, and replies that workers have not taken yet, leave of the memory.
  uint64_t memory_left() const;
  uint64_t sequence() const;
  // Of the last frame or closing: what comes after it says nothing of parameters.
  uint64_t push_sequence() const;
  uint64_t cluster_epoch() const;
  // About the time that replaying all updates until now would take: reading them, and applying them on all
  // lanes that have shards.
  double replay_seconds() const;
  // First synchronous step that is not closed in the log.
  uint64_t frontier() const;
  // Whether it is one of the processes that were admitted.
  bool Knows(Incarnation process) const;
  // That have come whole of this worker since it was admitted; 0 if it is not.
  uint64_t PushesOf(WorkerId worker) const;
  // Null before DefineModel().
  std::shared_ptr<const ParamLayout> layout() const;
  uint32_t server() const { return options_.server; }
  uint32_t servers() const { return options_.servers; }
  int state_planes() const { return state().planes(); }
  const StateOwner& state() const { return *options_.state; }

 private:
  struct Operation;
  struct Session;
  struct Delivery;
  using OperationPtr = std::shared_ptr<Operation>;
  using Operations = PooledVector<OperationPtr>;

  // ResourceExhausted while the log is full.
  absl::Status CheckLogRoom() const;
  void TrimLog(uint64_t first_needed);
  // Calls `load` for each of this server's shards, on many threads; says in the log how far it has come with
  // `what`.
  absl::Status ForEachOwnedShard(const std::string& what,
                                 const std::function<absl::Status(uint32_t shard)>& load);
  // What is left of Handle() once the frame is decoded: on its caller's thread, or the first part's lane.
  void CheckAndSequence(const OperationPtr& op);
  void SayOverload(const absl::Status& status, absl::Time now);
  // All of one payload; reads it, so it runs without the lock.
  absl::Status CheckContent(const Operation& op, size_t part) const;
  absl::Status CheckSender(const Operation& op) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  absl::Status CheckParts(const Operation& op) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  absl::Status CheckPush(const Operation& op) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // Whether all that it has delivered counts, or still may.
  absl::Status CheckCounts(const Operation& op) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  using PartStep = void (ParamServer::*)(const OperationPtr&, size_t part);
  using LastStep = void (ParamServer::*)(const OperationPtr&);
  // Takes `step` for each part on its shard's lane, one task a lane, then `last`, on the lane that ends last.
  // `cpu_nanos` (may be null) gets the lanes' time for the steps.
  void OnLanes(const OperationPtr& op, PartStep step, LastStep last, std::atomic<uint64_t>* cpu_nanos);
  void SequenceFrame(const OperationPtr& op) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void DeliverFrame(const OperationPtr& op) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // A synchronous step: the head has closed it for this shard, or will never.
  bool Closed(uint64_t step, uint32_t shard) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // A frame of the step has come; whether all workers push that step, or have.
  bool NoteBegun(const Operation& op) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // These shards have the worker's parts of the step; true if all `expected` have now that are counted here.
  bool NoteShards(Session* session, WorkerId worker, uint64_t step, absl::Span<const uint32_t> shards,
                  size_t expected) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // Whether the reply to a push has to wait, for closings of its parts or for other workers.
  bool MustWait(const OperationPtr& op) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void Wait(const OperationPtr& op) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // After any change of the gate: closes steps, tells the followers, and takes released replies out of
  // waiting_.
  Operations GateMoved() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void CloseWhatIsComplete() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void CloseShards(uint64_t step, const std::vector<uint32_t>& shards) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // Puts it into the log, and releases those who wait for it to where Take...() find them.
  void Close(StepClosing closing) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void ForgetAwaiting(uint64_t frontier) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // What it has pushed to steps that are not closed counts in none. Returns its replies that wait.
  Operations ForgetContributions(WorkerId worker) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // Sets the alarm for when the open step is to be closed without those who are awaited; returns when.
  absl::Time WatchQuorum() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // A quorum's grace may have passed.
  void CloseWithoutLate();
  void TellFrontier() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void TellClosing(const StepClosing& closing) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // Waiting replies that `wanted` says.
  Operations TakeWaiting(const std::function<bool(const Operation&)>& wanted)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  bool head() const { return options_.server == 0; }
  // A frame has neighbouring shards, and most frames are one lane's: it wakes no other one, and sends the
  // reply with what it has in its caches. (AssignShards() gives equal shards to the servers in turn.)
  uint32_t LaneKey(uint32_t shard) const { return shard / options_.servers / shards_in_a_row_; }
  uint64_t FrontierInLog() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // The log has failed: no step is closed any more.
  void GiveUpWaiting(const absl::Status& log_status);
  void DeliverClosing(const StepClosing& closing) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void PostClosing(const StepClosing& closing);
  // So many values are kept of a parameter, at most: itself, the optimizer's, its last ones.
  uint64_t PlanesOf(const ApplyRules& rules) const;
  // ResourceExhausted if the server has not the memory for so many pages of parameters and what goes with
  // them.
  absl::Status CheckMemory(uint64_t pages, const ApplyRules& rules, const std::string& model) const;
  uint64_t MemoryLeft() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // ResourceExhausted if frames under way may not hold so many bytes. `frame`: this one's, counted already.
  absl::Status CheckBytesInFlight(const Session& sender, uint64_t frame) const
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void SetShardRules(const ParamLayout& layout, const ApplyRules* rules);
  absl::Status SwitchRules(const ApplyRules& rules, uint64_t first_step);
  uint64_t FirstStepNobodyHasBegun() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  Operations TakeReleased() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);

  // The lane's.
  bool AnswersAtOnce(const Operation& op) const;
  void ApplyPart(const OperationPtr& op, size_t part);
  void Replayed(const OperationPtr& op);
  void DeliverPart(const OperationPtr& op, size_t part);
  void Delivered(const OperationPtr& op);
  void RecordDelivery(const OperationPtr& op) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void RecordDuplicates(size_t parts);
  void RecordPush();
  void RecordStaleness(uint64_t staleness);
  void Answer(const OperationPtr& op);
  void AnswerReleased(Operations ops);
  void AnswerDropped(Operations ops);
  void EncodeReply(const OperationPtr& op, size_t part);
  void Gather(const OperationPtr& op);
  void Finish(const OperationPtr& op, const absl::Status& status);
  void FinishOk(const OperationPtr& op);

  // Set in the constructor.
  const Options options_;
  struct Instruments;
  std::unique_ptr<Instruments> instruments_;

  mutable Mutex mu_;
  // What frames are sequenced by now; those before refer to others of `live_rules_`.
  std::deque<ApplyRules> live_rules_ ABSL_GUARDED_BY(mu_);
  const ApplyRules* rules_ ABSL_GUARDED_BY(mu_);
  bool changing_rules_ ABSL_GUARDED_BY(mu_) = false;
  std::shared_ptr<const ParamLayout> layout_ ABSL_GUARDED_BY(mu_);
  // Filled by DefineModel() and not resized again; the shards themselves are lane only. Null where another
  // server has the shard; `owned_` are those that are here, ascending.
  std::vector<std::unique_ptr<Shard>> shards_;
  std::vector<uint32_t> owned_;
  uint64_t owned_pages_ = 0;      // Of one plane. Set by DefineModel(), too.
  uint32_t shards_in_a_row_ = 1;  // On one lane. Set by DefineModel(), too.
  std::vector<uint32_t> server_of_shard_;
  uint64_t cluster_epoch_ ABSL_GUARDED_BY(mu_);
  // What the followers were told last, and the frontier when all that was complete was closed last.
  std::pair<uint64_t, bool> told_frontier_ ABSL_GUARDED_BY(mu_) = {0, false};
  static constexpr uint64_t kLookAtAll = UINT64_MAX;
  uint64_t closed_to_ ABSL_GUARDED_BY(mu_) = kLookAtAll;
  std::map<WorkerId, Session> sessions_ ABSL_GUARDED_BY(mu_);
  uint64_t next_session_ ABSL_GUARDED_BY(mu_) = 1;
  StalenessGate gate_ ABSL_GUARDED_BY(mu_);
  StepQuorum quorum_ ABSL_GUARDED_BY(mu_);
  std::unique_ptr<Alarm> grace_alarm_ ABSL_GUARDED_BY(mu_);  // Null until there is a quorum.
  std::map<StalenessGate::Ticket, OperationPtr> waiting_ ABSL_GUARDED_BY(mu_);
  StalenessGate::Ticket next_ticket_ ABSL_GUARDED_BY(mu_) = 0;
  // Synchronous steps are closed shard by shard, so that parameters come back while later gradients are on
  // their way. The head: who has contributed so far, by step and shard, to shards of the whole model.
  std::map<uint64_t, std::map<uint32_t, std::set<Shard::Contributor>>> contributed_ ABSL_GUARDED_BY(mu_);
  // What may be complete now; all of it if the gate has moved.
  std::map<uint64_t, std::vector<uint32_t>> touched_ ABSL_GUARDED_BY(mu_);
  // First step of each shard that is not closed, or whose closing is on its way through the log.
  std::vector<uint64_t> first_open_ ABSL_GUARDED_BY(mu_);
  // Replies by the step and shard for whose closing they wait; some may not wait any more. And those who need
  // not.
  std::map<std::pair<uint64_t, uint32_t>, Operations> awaiting_closing_ ABSL_GUARDED_BY(mu_);
  Operations released_ ABSL_GUARDED_BY(mu_);
  Operations dropped_ ABSL_GUARDED_BY(mu_);
  // First frame of each step that is not closed, and closings on their way through the log.
  std::map<uint64_t, uint64_t> open_steps_ ABSL_GUARDED_BY(mu_);
  std::multiset<uint64_t> closings_in_log_ ABSL_GUARDED_BY(mu_);
  absl::Status log_status_ ABSL_GUARDED_BY(mu_);
  bool has_snapshot_ ABSL_GUARDED_BY(mu_) = false;
  uint64_t log_from_ ABSL_GUARDED_BY(mu_) = 0;  // Of the newest snapshot.
  uint64_t log_bytes_at_snapshot_ ABSL_GUARDED_BY(mu_) = 0;
  uint64_t sequence_ ABSL_GUARDED_BY(mu_) = 0;
  uint64_t push_sequence_ ABSL_GUARDED_BY(mu_) = 0;
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
  double first_push_ms_ ABSL_GUARDED_BY(mu_) = 0;
  // Since the process started: when workers could come, and when the first did; 0 until then.
  double ready_ms_ ABSL_GUARDED_BY(mu_) = 0;
  double first_worker_ms_ ABSL_GUARDED_BY(mu_) = 0;

  std::atomic<uint64_t> apply_nanos_{0};
  std::atomic<uint64_t> updates_{0};  // As Stats has them.
  // The replaying thread's until EndReplay(); shards refer to them until then.
  std::deque<ApplyRules> replay_rules_;
  LoggedPushes left_out_;  // The replaying thread's, too.
  // Set before frames come.
  std::unique_ptr<PushLog> log_;

  // Last: its destructor runs what is queued while the rest still exists.
  LanePool lanes_;
};

}  // namespace recon
