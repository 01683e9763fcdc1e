#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/functional/any_invocable.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "common/base/alarm.h"
#include "common/base/byte_chain.h"
#include "common/base/check.h"
#include "common/base/ids.h"
#include "common/base/mutex.h"
#include "common/metrics/metrics.h"
#include "common/optim/apply_rules.h"
#include "common/snapshot/snapshot_reader.h"
#include "common/tensor/param_layout.h"
#include "common/transport/transport.h"
#include "server/data_plane/awaited_values.h"
#include "server/data_plane/job_log.h"
#include "server/data_plane/memory_budget.h"
#include "server/data_plane/operation.h"
#include "server/data_plane/param_replay.h"
#include "server/data_plane/param_stats.h"
#include "server/data_plane/peer_steps.h"
#include "server/data_plane/shard_set.h"
#include "server/data_plane/start_times.h"
#include "server/data_plane/state_upload.h"
#include "server/data_plane/step_members.h"
#include "server/data_plane/waiting_replies.h"
#include "server/data_plane/worker_tally.h"
#include "server/data_plane/workers_state.h"
#include "server/sync/closed_steps.h"
#include "server/sync/step_book.h"

namespace recon {

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
class ParamServer final : public WorkersState, private StepMembers, private PeerSteps, private ParamReplay {
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
    // those frames half of what they leave.
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
  // Where the server is in its log.
  struct LogPosition {
    uint64_t sequence = 0;
    // Of the last frame or closing: what comes after it says nothing of parameters.
    uint64_t push_sequence = 0;
    // About the time that replaying all updates until now would take: reading them, and applying them on all
    // lanes that have shards.
    double replay_seconds = 0;
  };

  // `metrics` must outlive the server.
  ParamServer(const Options& options, Metrics* metrics);
  ~ParamServer() override;

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

  // The push log, where the job has one. Log().Set() comes after a replay and before frames.
  JobLog* log() { return &log_; }
  // Puts records of the control state (ControlRecord) into the log, in this order, and returns when they are
  // written. `written` is called with the sequence of each on the log's thread, before any later cut; without
  // a log, with the sequence that there is. Blocks on the disk.
  absl::Status RecordControl(const std::vector<std::string>& records,
                             const std::function<void(uint64_t sequence)>& written);
  // Handles one frame: a pull, a push, or initial values. `taken` may run before `done` if a push is
  // delivered to the lanes and its reply has to wait for other workers: at once if some have not begun its
  // step, else when it has waited for limits::kInStepPatience.
  void Handle(const ByteChain& bytes, absl::Time now, Taken taken, Done done, RequestContext context = {});

  // Who takes part in steps; what the other servers say of steps; the log's records, after a restart.
  StepMembers* members() { return this; }
  PeerSteps* peers() { return this; }
  ParamReplay* replay() { return this; }
  // Workers can come from now on: until then they are not what a first push waits for.
  void NoteReady();

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
  // Those that frames are sequenced by now, in the epoch there is.
  ApplyRules rules() const;

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
  LogPosition position() const;
  // Null before DefineModel().
  std::shared_ptr<const ParamLayout> layout() const;
  // As given; `state` is never empty.
  const Options& options() const { return options_; }

 private:
  // StepMembers.
  void Admit(WorkerId worker, Incarnation incarnation, uint64_t next_step) override;
  void Expel(WorkerId worker) override;
  uint64_t Activate(WorkerId worker, uint64_t next_step, bool resumes) override;
  void Deactivate(WorkerId worker) override;
  bool active(WorkerId worker) const override;
  bool awaited(WorkerId worker) const override;
  void Park(WorkerId worker) override;
  void SetQuorum(uint32_t workers, std::optional<absl::Duration> grace) override;
  void NoteAcknowledged(WorkerId worker, uint64_t next_step) override;
  void SkipTo(uint64_t frontier) override;
  uint64_t frontier() const override;
  uint64_t PushesOf(WorkerId worker) const override;
  bool Knows(Incarnation process) const override;

  // PeerSteps.
  void NoteDelivered(WorkerId worker, Incarnation incarnation, uint64_t step,
                     const std::vector<uint32_t>& shards, uint32_t push_parts) override;
  void ForgetDeliveriesTo(uint32_t server) override;
  void FollowClosing(const StepClosing& closing) override;
  void FollowFrontier(uint64_t frontier, bool anyone_active) override;

  // ParamReplay.
  void BeginReplay(const ApplyRules& rules) override;
  absl::Status ReplayFrame(uint64_t sequence, const ByteChain& payload) override;
  absl::Status ReplayClosing(uint64_t sequence, const StepClosing& closing) override;
  void ReplayFreeze(uint64_t sequence) override;
  void ReplayControl(uint64_t sequence) override;
  void EndReplay() override;
  void LeaveOut(LoggedPushes pushes) override;
  void BeginHistory(uint64_t sequence, uint64_t first_step) override;

  // WorkersState.
  void AwaitState(WorkerId worker, uint64_t upload, std::function<void(uint64_t step)> staged) override;
  absl::Status CommitState(uint64_t upload) override;
  absl::Status RestoreState(const SnapshotReader& reader, const Manifest& manifest, uint64_t upload) override;
  uint64_t state_version() const override;

  struct Instruments;

  bool head() const { return options_.server == 0; }
  // What is kept for each parameter.
  const StateOwner& state() const { return *options_.state; }
  int state_planes() const { return state().planes(); }
  absl::Duration SinceBegan() const;

  // The way of a push, in this order. (A pull and initial values leave it early.)
  void Check(const OperationPtr& op);
  absl::Status CheckSender(const Operation& op) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  absl::Status CheckKind(const Operation& op) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
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
  void StateCame(const OperationPtr& op);
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
  uint64_t PlanesOf(uint64_t pages, const ApplyRules& rules) const;
  uint64_t StateBytes(uint64_t pages, const ApplyRules& rules) const;
  std::string SaidOptimizer() const;
  absl::Status CheckNewRules(const ApplyRules& rules) const;
  absl::Status SwitchRules(const ApplyRules& rules, uint64_t first_step);
  double ReplaySeconds() const;
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
  ClosedSteps closed_ ABSL_GUARDED_BY(mu_);
  StepBook book_ ABSL_GUARDED_BY(mu_);
  // The frontier, and whether anyone takes part, as the followers were told.
  std::pair<uint64_t, bool> told_frontier_ ABSL_GUARDED_BY(mu_) = {0, false};
  WaitingReplies replies_ ABSL_GUARDED_BY(mu_);
  MemoryBudget memory_ ABSL_GUARDED_BY(mu_);
  std::unique_ptr<Alarm> grace_alarm_ ABSL_GUARDED_BY(mu_);  // Null until there is a quorum.
  std::map<WorkerId, WorkerTally> workers_ ABSL_GUARDED_BY(mu_);
  // Whose pushes snapshot and log have, as ledgers do: the newest process of each worker.
  std::map<WorkerId, Incarnation> recovered_ ABSL_GUARDED_BY(mu_);
  absl::Status log_status_ ABSL_GUARDED_BY(mu_);
  uint64_t sequence_ ABSL_GUARDED_BY(mu_) = 0;
  uint64_t push_sequence_ ABSL_GUARDED_BY(mu_) = 0;
  int operations_ ABSL_GUARDED_BY(mu_) = 0;
  uint64_t pushes_ ABSL_GUARDED_BY(mu_) = 0;
  uint64_t duplicates_ ABSL_GUARDED_BY(mu_) = 0;

  AwaitedValues values_ ABSL_GUARDED_BY(mu_);
  StateUpload state_upload_ ABSL_GUARDED_BY(mu_);
  std::function<void(uint64_t step)> state_staged_ ABSL_GUARDED_BY(mu_);
  uint64_t state_version_ ABSL_GUARDED_BY(mu_) = 0;
  StartTimes start_ ABSL_GUARDED_BY(mu_);

  // The replaying thread's until EndReplay().
  ApplyRulesPtr replay_rules_;
  LoggedPushes left_out_;

  JobLog log_;
  // Last: its destructor runs what lanes have to do while the rest still exists. Its model is set under the
  // lock.
  ShardSet shards_;
};

// What of the workers' state it keeps.
inline WorkersState* WorkersStateOf(ParamServer* params) { return params; }

template <typename Step, typename Failed>
void ParamServer::InOrder(LogRecordKind kind, ByteChain record, Step step, Failed failed) {
  if (!log_.on()) return step();
  auto logged = [this, step = std::move(step), failed = std::move(failed)](const absl::Status& written) {
    if (!written.ok()) return failed(written);
    MutexLock lock(&mu_);
    step();
    RECON_CHECK_EQ(sequence_, log_.get()->called_back(), "the server counts records as its log does");
  };
  log_.get()->Append(kind, std::move(record), Pooled(std::move(logged)));
}

}  // namespace recon
