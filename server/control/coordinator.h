#pragma once

#include <functional>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "common/base/ids.h"
#include "common/metrics/metrics.h"
#include "common/snapshot/control_state.h"
#include "common/transport/connected_processes.h"
#include "proto/control.pb.h"
#include "server/control/policy.h"
#include "server/control/ports.h"
#include "server/durability/retention.h"
#include "server/membership/divergence_watch.h"
#include "server/membership/idle_watch.h"
#include "server/membership/membership.h"
#include "server/membership/progress_watch.h"
#include "server/membership/stall_watch.h"
#include "server/scheduler/lease_table.h"
#include "server/scheduler/split_queue.h"
#include "server/tuning/codec_tuner.h"
#include "server/tuning/policy_tuner.h"
#include "server/tuning/step_shares.h"

namespace recon {

// The control plane without gRPC, threads and clock: who is a member, who works on what, when a job starts
// and ends. It sees the rest of the server through its ports (ports.h) alone; LaneCoordinator is the one that
// a server has.
//
// Threads: none of its own; the caller serializes. A method blocks as long as its ports do (a journal's on
// the disk). Time is an argument.
class Coordinator {
 public:
  struct Options {
    JobConfig job;
    Membership::Timeouts timeouts;
    uint64_t cluster_epoch = 1;
    std::string optimizer;
    uint64_t job_id = 0;
    std::string snapshot_dir;  // As workers can open it.
    // A snapshot is taken after each evaluation that is the best so far.
    BestBy keep_best = BestBy::kNone;
    // A lease has as many splits as its worker computes in so long; 0: one.
    absl::Duration lease_target;
    // For Status(): when the server's process was started, by the clock of the other methods' `now`.
    absl::Time process_began = absl::UnixEpoch();
    // Who has connections for frames; null: not known. It outlives the coordinator.
    const ConnectedProcesses* connected = nullptr;
    // What another policy is made from, and what the flags say.
    PolicyBase policy_base;
    PolicySettings policy_of_flags;
    // And what is in force: those, or what was set later.
    PolicySettings policy;
    // The settings by flag that a worker's script has to agree with, and what the first one asked for.
    std::map<std::string, std::string> settings;
    std::vector<FlagValue> proposed;
    // Takes what the first worker's script asks for, where the server can begin anew with it; the job has not
    // begun then. Always an error: InvalidArgument for a wish that means nothing; Unavailable, and the worker
    // asks again. Control lane.
    std::function<absl::Status(const RegisterRequest&)> adopt_proposal;
  };

  // `metrics` must outlive the coordinator.
  Coordinator(const Options& options, const CoordinatorPorts& ports, Metrics* metrics);

  // When all servers are there, a snapshot has to come before anything else: this one's log goes on from it.
  // Before servers come.
  void RequireSnapshot() { must_snapshot_ = true; }

  // A new job begins with these parameters, of the model that its first worker has; before Recover(). They
  // must outlive the coordinator.
  void BeginFrom(ValuesSource* initial) { initial_ = initial; }

  // What RegisterReply says of them; before workers come.
  void OfferFrames(const std::string& shared_memory, const std::string& ucx_address) {
    shared_memory_ = shared_memory;
    ucx_address_ = ucx_address;
  }

  // The last one; without a history, there was none. For Status(); before workers come.
  void NoteRollback(const RollbackRecord& record) { rollback_ = record; }

  // Takes up the job a data directory holds. FailedPrecondition, naming the flag, if the job's settings
  // differ from what it was started with. `restored` is the snapshot it continues from, if any.
  absl::Status Recover(const std::optional<Manifest>& restored, absl::Time now);

  // `peer`: from where the request came, as people read it; empty if unknown.
  absl::StatusOr<RegisterReply> Register(const RegisterRequest& request, absl::Time now,
                                         const std::string& peer = "");
  absl::StatusOr<HeartbeatReply> Heartbeat(const HeartbeatRequest& request, const Moment& at);
  absl::StatusOr<AcquireReply> Acquire(const AcquireRequest& request, absl::Time now);
  absl::StatusOr<CompleteReply> Complete(const CompleteRequest& request, const Moment& at);
  // A push of the worker came too late for its step: it takes part in steps again, from the one that is
  // returned. Aborted if it holds no lease of training data.
  absl::StatusOr<RejoinReply> Rejoin(const RejoinRequest& request, absl::Time now);
  absl::StatusOr<LeaveReply> Leave(const LeaveRequest& request, const Moment& at);
  absl::StatusOr<StatusReply> Status(absl::Time now);
  absl::StatusOr<CompletionsReply> Completions() const;

  // The job goes on by another policy. InvalidArgument for one that means nothing, FailedPrecondition for one
  // that this job cannot have.
  absl::StatusOr<SetPolicyReply> SetPolicy(const SetPolicyRequest& request, absl::Time now);

  // Evicts silent members, takes back expired leases.
  void Tick(absl::Time now);

  // The cluster's event: servers that have come begin a new epoch with all others.
  void OnServersChanged(absl::Time now);

  // No more leases.
  void BeginDrain() { draining_ = true; }
  // Not OK once the job cannot go on: its initial parameters could not be read.
  absl::Status failure() const { return failure_; }
  // What is wrong with training, if something has been noticed since it was asked last. In the log already.
  std::optional<DivergenceWatch::Finding> TakeDivergence();
  // For how long nobody has trained: no push came, no split was completed.
  absl::Duration Idle(absl::Time now) const { return idle_.Idle(now); }
  bool finished() const { return finished_; }
  int workers_alive() const { return membership_.alive(); }
  // All work is done and its last snapshot published, and the workers have been told (or `grace` passed).
  bool DoneAndQuiet(absl::Time now, absl::Duration grace) const;

 private:
  JobPhase phase() const;
  absl::StatusOr<WorkerId> CheckIdentity(const WorkerIdentity& identity, absl::Time now);
  // The job goes on by these settings; by what auto begins with, if they are that.
  absl::Status GoOnWith(const PolicySettings& settings, absl::Time now);
  // And by what auto has chosen, until it is in force.
  void TunePolicy(absl::Time now);
  // A new cluster epoch, by these rules; no step before `first_step` is begun in it.
  absl::Status GoOnBy(ApplyRules rules, uint64_t first_step, absl::Time now);
  absl::Status AdoptModel(const RegisterRequest& request);
  // Whether the name is free for this process. Another one that is alive and connected keeps it:
  // AlreadyExists if nobody asked for this name, else Aborted, and the worker asks again.
  absl::Status CheckName(const RegisterRequest& request, WorkerId worker, const std::string& peer,
                         absl::Time now);
  // On every server.
  bool HasValues() const;
  void Admit(WorkerId worker, Incarnation incarnation, uint64_t next_step);
  // Where `worker` may find parameters besides here.
  std::vector<std::string> PeersFor(WorkerId worker, absl::Time now) const;
  void Expel(WorkerId worker);
  // In the log, if the push log is small beside the model.
  void WarnOfSmallLog() const;
  absl::Status CheckDataset(const RegisterRequest& request) const;
  absl::Status StartQueue(const JobRecord& record);
  void AdoptLeases(const RegisterRequest& request, WorkerId worker, absl::Time now, RegisterReply* reply);
  bool AskForInitialValues(WorkerId worker);
  void LoadInitialValues();
  void OnInitialValues();
  void TakeInitialSnapshot();
  void StartIfReady();
  // Counts what a worker that did not leave in good order took with it.
  void NoteResidualLost(const std::string& name, const WorkerProgress& progress);
  void ReturnTasks(const std::vector<Task>& tasks);
  void Depart(WorkerId worker, const std::string& how);
  // Takes back the leases of workers that are alive and stand still, and lets nobody wait for them.
  void WatchProgress(absl::Time now);
  void NoteEvaluation(uint32_t data_epochs, int64_t unix_ms);
  void KeepIfBest();
  // A worker cannot compute from the parameters there are.
  void NoteDiverged(WorkerId worker, const std::string& why, absl::Time wall);
  void FinishIfDone(absl::Time now);
  Lease ToLease(const Task& task, LeaseId id) const;
  // Of this worker's rounds; 0 without them.
  uint32_t LocalStepsOf(WorkerId worker) const;
  // Batches of its pushes, where the server decides that; else 0.
  uint32_t PushBatchesOf(WorkerId worker) const;
  // Samples of a synchronous step of gradients, whoever is there; 0: of one batch of each worker.
  uint64_t StepSamples() const;
  // Of a job whose step keeps as many as its first one had; once that begins.
  absl::Status FixStepSamples();
  // The worker's process has computed nothing yet, and others have: they need not wait for its first push,
  // which can be sent again in the step that is open then.
  bool MayJoinLater(WorkerId worker) const;
  // Puts the worker among those that take part in steps, or lets it wait until it has something to push.
  // Returns the first step it may push.
  uint64_t TakePart(WorkerId worker, uint64_t next_step, bool resumes);
  void ApplyQuorum();
  void NoteFastest();
  // What workers' steps are made of, from time to time.
  void NoteShares(absl::Time now);
  // Says now and then, in the log, that the job stands still.
  void WatchStall(uint64_t pushes, absl::Time now);
  // What a job that stands still waits for, as a sentence.
  std::string WhatIsMissing(absl::Time now) const;
  void NoteCompleted(const Completion& completion);
  std::string WhoHoldsUp() const;

  std::string shared_memory_, ucx_address_;
  const Options options_;
  const CoordinatorPorts ports_;
  prometheus::Gauge& members_;
  prometheus::Gauge& samples_completed_;
  prometheus::Gauge& accuracy_;
  prometheus::Gauge& standing_seconds_;
  prometheus::Gauge& log_bytes_;
  prometheus::Gauge& log_budget_bytes_;
  prometheus::Counter& departures_;
  prometheus::Counter& splits_without_push_;
  prometheus::Counter& residuals_lost_;
  prometheus::Gauge& auto_codec_rung_;
  prometheus::Gauge& diverged_;

  JobConfig job_;
  std::string optimizer_;
  uint64_t cluster_epoch_;
  Membership membership_;
  LeaseTable leases_;
  ProgressWatch progress_;
  absl::Time watch_at_ = absl::InfinitePast();
  double fastest_batch_seconds_ = 0;  // Of all workers' batches; 0 if none has computed one.
  StepShares shares_;
  absl::Time shares_at_ = absl::InfinitePast();
  StallWatch stall_;
  IdleWatch idle_;
  DivergenceWatch divergence_;
  std::string divergence_said_;         // What was found last.
  uint64_t non_finite_generation_ = 0;  // The last that was found to be.
  // What is shown of workers that are gone: what the data plane knew of them.
  std::map<WorkerId, WorkerPushStats> last_stats_;
  std::map<std::string, uint64_t> samples_of_;  // Training samples completed, by the worker's name.
  CodecTuner codec_tuner_;
  // With --sync auto: the settings, and what chooses within them.
  PolicySettings auto_settings_;
  std::optional<PolicyTuner> policy_tuner_;
  absl::Time policy_due_at_ = absl::InfiniteFuture();  // Its choice is to be in force.
  std::optional<SplitQueue> queue_;
  std::optional<JobRecord> record_;
  std::vector<EvalEntry> evaluations_;
  std::optional<WorkerId> initializer_;
  uint64_t initializer_epoch_ = 0;   // In which all servers were told of it.
  ValuesSource* initial_ = nullptr;  // Null: the first worker has them.
  absl::Status failure_;
  RollbackRecord rollback_;
  bool started_ = false;
  bool must_snapshot_ = false;
  bool draining_ = false;
  bool finishing_ = false;
  bool finished_ = false;
  absl::Time no_grants_before_ = absl::InfinitePast();
  absl::Time snapshot_retry_at_ = absl::InfiniteFuture();
  absl::Time final_retry_at_ = absl::InfinitePast();
  absl::Time epoch_retry_at_ = absl::InfiniteFuture();
  absl::Time finished_at_ = absl::InfiniteFuture();
  uint64_t restored_generation_ = 0;
  std::map<WorkerId, uint64_t> next_steps_;  // As registered, for the common start.
};

}  // namespace recon
