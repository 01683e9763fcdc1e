#pragma once

#include <cstdint>
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
#include "common/base/mutex.h"
#include "common/metrics/metrics.h"
#include "common/optim/apply_rules.h"
#include "common/snapshot/snapshot_reader.h"
#include "common/tensor/param_layout.h"
#include "common/transport/transport.h"
#include "server/data_plane/job_log.h"
#include "server/data_plane/memory_budget.h"
#include "server/data_plane/operation.h"
#include "server/data_plane/param_stats.h"
#include "server/data_plane/shard_set.h"
#include "server/data_plane/waiting_replies.h"
#include "server/data_plane/worker_tally.h"
#include "server/durability/push_log.h"
#include "server/sync/step_book.h"

namespace recon {

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

  using WorkerStats = WorkerPushStats;
  using Stats = ParamStats;

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
  void SetLog(std::unique_ptr<PushLog> log) { log_.Set(std::move(log)); }
  // Not OK once the log has failed: nothing more is acknowledged, and the process should be started anew.
  absl::Status log_status() const { return log_.status(); }
  // Puts records of the control state (ControlRecord) into the log, in this order, and returns when they are
  // written. `written` is called with the sequence of each on the log's thread, before any later cut; without
  // a log, with the sequence that there is. Blocks on the disk.
  absl::Status RecordControl(const std::vector<std::string>& records,
                             const std::function<void(uint64_t sequence)>& written);
  // A snapshot is published that needs the log's records from `log_from` on. Blocks on the disk.
  void NoteSnapshot(uint64_t log_from) { log_.NoteSnapshot(log_from); }
  // Whether a snapshot should come early, so that records of the log can go: it has grown by a quarter of its
  // budget since the last one, or is full.
  bool log_wants_snapshot() const { return log_.wants_snapshot(); }
  // The log is full: pushes are told to wait until a snapshot has made room.
  bool log_full() const { return log_.full(); }
  uint64_t log_disk_bytes() const { return log_.disk_bytes(); }
  uint64_t log_budget_bytes() const { return log_.budget_bytes(); }
  // Removes what only a snapshot before the newest would need. Blocks on the disk.
  void TrimLogToNewest() { log_.TrimToNewest(); }
  // With a log no push is taken before there is a snapshot that it goes on from: one has to come, whatever
  // was noted.
  void AwaitSnapshot() { log_.AwaitSnapshot(); }
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
  struct Instruments;

  bool head() const { return options_.server == 0; }

  // The way of a push, in this order. (A pull and initial values leave it early.)
  void Check(const OperationPtr& op);
  absl::Status CheckSender(const Operation& op) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  absl::Status CheckPush(const Operation& op) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void Sequence(const OperationPtr& op) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void Deliver(const OperationPtr& op) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void Delivered(const OperationPtr& op);
  absl::Status Note(const OperationPtr& op) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  absl::Status Wait(const OperationPtr& op) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void Answer(const OperationPtr& op);
  void FinishOk(const OperationPtr& op);
  void Finish(const OperationPtr& op, const absl::Status& status);
  void InitialValuesCame(const OperationPtr& op);
  void SayOverload(const absl::Status& status, absl::Time now);

  // Runs `step` under the lock when the record is in the log and everything before it has run; at once if
  // there is no log. If the log fails, `failed` runs instead, without the lock.
  template <typename Step, typename Failed>
  void InOrder(LogRecordKind kind, ByteChain record, Step step, Failed failed)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);

  // After any change of the book: closes steps, tells the followers, and returns replies that may go out.
  Operations BookMoved() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // Makes a change of the book under the lock, and answers what it releases.
  template <typename Change>
  void MoveBook(Change change);
  // Puts a closing that the book has noted into the log, and releases those who wait for it.
  void Close(StepClosing closing) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void DeliverClosing(const StepClosing& closing) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void TellClosing(const StepClosing& closing) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void TellFrontier() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  Operations TakeReleased() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void AnswerReleased(Operations ops);
  void AnswerDropped(const Operations& ops);
  void FinishAll(const Operations& ops, const absl::Status& status);
  // The log has failed: no step is closed any more.
  void GiveUpWaiting(const absl::Status& log_status);
  // A quorum's grace may have passed.
  void CloseWithoutLate();
  // Sets the alarm for when the open step is to be closed without those who are awaited; returns when.
  absl::Time WatchQuorum() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);

  // So many values are kept of a parameter, at most: itself, the optimizer's, its last ones.
  uint64_t PlanesOf(const ApplyRules& rules) const;
  uint64_t StateBytes(uint64_t pages, const ApplyRules& rules) const;
  std::string SaidOptimizer() const;
  absl::Status CheckNewRules(const ApplyRules& rules) const;
  absl::Status SwitchRules(const ApplyRules& rules, uint64_t first_step);
  // Of a cut here, but for the shards.
  StateCut DescribeCut() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void Replayed(const OperationPtr& op);

  // Set in the constructor.
  const Options options_;
  std::unique_ptr<Instruments> instruments_;

  mutable Mutex mu_;
  ApplyRulesPtr rules_ ABSL_GUARDED_BY(mu_);  // What frames are sequenced by now.
  bool changing_rules_ ABSL_GUARDED_BY(mu_) = false;
  bool draining_ ABSL_GUARDED_BY(mu_) = false;
  uint64_t cluster_epoch_ ABSL_GUARDED_BY(mu_);
  StepBook book_ ABSL_GUARDED_BY(mu_);
  WaitingReplies replies_ ABSL_GUARDED_BY(mu_);
  MemoryBudget memory_ ABSL_GUARDED_BY(mu_);
  std::unique_ptr<Alarm> grace_alarm_ ABSL_GUARDED_BY(mu_);  // Null until there is a quorum.
  std::map<WorkerId, WorkerTally> workers_ ABSL_GUARDED_BY(mu_);
  absl::Status log_status_ ABSL_GUARDED_BY(mu_);
  uint64_t sequence_ ABSL_GUARDED_BY(mu_) = 0;
  uint64_t push_sequence_ ABSL_GUARDED_BY(mu_) = 0;
  int operations_ ABSL_GUARDED_BY(mu_) = 0;
  uint64_t pushes_ ABSL_GUARDED_BY(mu_) = 0;
  uint64_t duplicates_ ABSL_GUARDED_BY(mu_) = 0;

  // Initial values: who sends them, what has not come, and who hears that all have.
  bool has_values_ ABSL_GUARDED_BY(mu_) = false;
  WorkerId initializer_ ABSL_GUARDED_BY(mu_);
  std::set<uint32_t> shards_to_init_ ABSL_GUARDED_BY(mu_);
  std::function<void()> on_initialized_ ABSL_GUARDED_BY(mu_);

  // Milliseconds since the server began; 0 until then.
  double recover_ms_ ABSL_GUARDED_BY(mu_) = 0;
  double first_push_ms_ ABSL_GUARDED_BY(mu_) = 0;
  double ready_ms_ ABSL_GUARDED_BY(mu_) = 0;         // Workers could come.
  double first_worker_ms_ ABSL_GUARDED_BY(mu_) = 0;  // The first did.

  // The replaying thread's until EndReplay().
  ApplyRulesPtr replay_rules_;
  LoggedPushes left_out_;

  JobLog log_;
  // Last: its destructor runs what lanes have to do while the rest still exists. Its model is set under the
  // lock.
  ShardSet shards_;
};

template <typename Step, typename Failed>
void ParamServer::InOrder(LogRecordKind kind, ByteChain record, Step step, Failed failed) {
  if (!log_.on()) return step();
  auto logged = [this, step = std::move(step), failed = std::move(failed)](const absl::Status& written) {
    if (!written.ok()) return failed(written);
    MutexLock lock(&mu_);
    step();
  };
  log_.get()->Append(kind, std::move(record), Pooled(std::move(logged)));
}

}  // namespace recon
