#pragma once

#include <cstddef>
#include <functional>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "common/base/ids.h"
#include "common/metrics/metrics.h"
#include "common/snapshot/control_state.h"
#include "common/transport/connected_processes.h"
#include "proto/control.pb.h"
#include "server/control/auto_policy.h"
#include "server/control/coordinator_metrics.h"
#include "server/control/durable_job_record.h"
#include "server/control/evaluation_history.h"
#include "server/control/job_lifecycle.h"
#include "server/control/job_parameters.h"
#include "server/control/policy.h"
#include "server/control/ports.h"
#include "server/control/push_sizes.h"
#include "server/control/standstill.h"
#include "server/control/worker_states.h"
#include "server/durability/retention.h"
#include "server/membership/divergence_watch.h"
#include "server/membership/membership.h"
#include "server/membership/progress_watch.h"
#include "server/scheduler/lease_scheduler.h"
#include "server/tuning/codec_tuner.h"
#include "server/tuning/step_shares.h"

namespace recon {

// The control plane without gRPC, threads and clock: who is a member, who works on what, when a job starts
// and ends. It sees the rest of the server through its ports (ports.h) alone; LaneCoordinator is the one that
// a server has.
//
// It owns the order in which things happen; what is decided, its parts decide, each for itself:
//
//   Membership, ProgressWatch         who is alive, and who stands still
//   LeaseScheduler                    who works on what
//   DurableJobRecord, JobParameters   what the job is, and how it comes to its parameters
//   JobLifecycle                      whether it waits, runs or ends
//   AutoPolicy, CodecTuner, PushSizes what is tuned while it runs
//   WorkerStates                      who has the state, where workers have the optimizer
//   EvaluationHistory, DivergenceWatch, StepShares, StandstillWatch   how it goes
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
    // By which workers that hand out their parameters know other workers.
    std::string peers_token;
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
  void RequireSnapshot() { parameters_.RequireSnapshot(); }

  // A new job begins with these parameters, of the model that its first worker has; before Recover(). They
  // must outlive the coordinator.
  void BeginFrom(ValuesSource* initial) { parameters_.BeginFrom(initial); }

  // What RegisterReply says of them; before workers come.
  void OfferFrames(const std::string& shared_memory, const std::string& ucx_address) {
    frames_.set_shared_memory(shared_memory);
    frames_.set_ucx_address(ucx_address);
  }
  // Workers can come from now on: for a while those that had leases before a restart come back first.
  // `all_in_snapshot`: the snapshot that was restored has all that there is. If all work was done before, the
  // job is finished as it is then.
  void NoteServing(absl::Time now, bool all_in_snapshot = false);

  // The last one; without a history, there was none. For Status(); before workers come.
  void NoteRollback(const RollbackRecord& record) { rollback_ = record; }

  // Takes up the job a data directory holds. FailedPrecondition, naming the flag, if the job's settings
  // differ from what it was started with. `restored` is the snapshot it continues from, if any.
  absl::Status Recover(const std::optional<Manifest>& restored);

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
  void BeginDrain() { lifecycle_.BeginDrain(); }
  // Not OK once the job cannot go on: its initial parameters could not be read.
  absl::Status failure() const { return parameters_.failure(); }
  // What is wrong with training, if something has been noticed since it was asked last. In the log already.
  std::optional<DivergenceWatch::Finding> TakeDivergence();
  // For how long nobody has trained: no push came, no split was completed.
  absl::Duration Idle(absl::Time now) const { return standing_.watch.Idle(now); }
  bool finished() const { return lifecycle_.finished(); }
  int workers_alive() const { return membership_.alive(); }
  // All work is done and its last snapshot published, and the workers have been told (or `grace` passed).
  bool DoneAndQuiet(absl::Time now, absl::Duration grace) const {
    return lifecycle_.DoneAndQuiet(now, grace, membership_.alive());
  }

 protected:
  // Whether all workers that are alive have sent a heartbeat, or something else, since then.
  bool HeardOfAllSince(absl::Time since) const;

 private:
  JobPhase phase() const { return lifecycle_.phase(); }
  // It runs, and every server has its parameters.
  bool trains() const { return phase() == PHASE_RUNNING && parameters_.HasValues(); }

  // Members (coordinator_members.cc).
  absl::StatusOr<WorkerId> CheckIdentity(const WorkerIdentity& identity, absl::Time now);
  // What the job is: the first worker says it, all others have to agree. Durable before it returns.
  absl::Status AgreeOnJob(const RegisterRequest& request);
  absl::Status BeginJob(const RegisterRequest& request);
  // Steps go on from where the worker is, if it is far beyond the job's.
  absl::Status CatchUpWith(const RegisterRequest& request, absl::Time now);
  // Makes it a member, in the place of whichever process had its number.
  absl::Status Enter(const RegisterRequest& request, WorkerId worker, const std::string& peer,
                     absl::Time now);
  // Another process goes on under the worker's number. (AdoptLeases() ends what the one before held.)
  void Replace(WorkerId worker, const Membership::Member& before);
  RegisterReply TellOfJob(WorkerId worker, absl::Time now) const;
  // Ends the leases of the worker, and gives it back those that its process says it works on.
  void AdoptLeases(const RegisterRequest& request, WorkerId worker, absl::Time now, RegisterReply* reply);
  // The first step that a worker with these leases may push.
  uint64_t StartStepOf(WorkerId worker, const RegisterRequest& request, const RegisterReply& reply);
  void Admit(WorkerId worker, Incarnation incarnation, uint64_t next_step);
  void Expel(WorkerId worker);
  void Depart(WorkerId worker, const std::string& how);
  // What was measured of its process is of no use any more.
  void ForgetSteps(WorkerId worker);
  // Counts what a worker that did not leave in good order took with it.
  void NoteResidualLost(const std::string& name, const WorkerProgress& progress);
  // Parameters are not finite.
  // As it is called, or its number.
  std::string NameOf(WorkerId worker) const;
  void NoteNonFinite(const NonFiniteUpdate& found);
  // Says it once.
  void NoteUnlikeRates(const UnlikeRates& found);
  // A worker cannot compute from the parameters there are.
  void NoteDiverged(WorkerId worker, const std::string& why, absl::Time wall);

  // Start and end (coordinator.cc).
  absl::Status StartQueue(const JobRecord& record);
  void StartIfReady();
  void FinishIfDone(absl::Time now);

  // Work (coordinator_leases.cc).
  std::optional<Lease> GrantTo(WorkerId worker, absl::Time now);
  // Takes back the leases of workers that are alive and stand still, and lets nobody wait for them.
  void WatchProgress(absl::Time now);
  // The evaluation after so many passes, if it is whole now. True if it is.
  bool NoteEvaluation(uint32_t data_epochs, int64_t unix_ms);
  // Whoever keeps the best snapshot needs one of the parameters of the last evaluation, if that is the best.
  void KeepIfBest();
  // The worker's process has computed nothing yet, and others have: they need not wait for its first push,
  // which can be sent again in the step that is open then.
  bool MayJoinLater(WorkerId worker) const;
  // Puts the worker among those that take part in steps, or lets it wait until it has something to push.
  // Returns the first step it may push.
  uint64_t TakePart(WorkerId worker, uint64_t next_step, bool resumes);
  uint32_t PushBatchesOf(WorkerId worker) const {
    return push_sizes_.BatchesOf(worker, membership_, job_, record_.step_samples());
  }

  // State of workers (coordinator_states.cc).
  absl::Status NoteState(WorkerId worker, const WorkerStateReport& report);
  void TellOfState(WorkerId worker, absl::Time now, WorkerStateReply* reply);
  void AskForState(absl::Time now);
  // All that a server has of an upload is staged there; 0 is the head.
  void OnStateStaged(uint32_t server, uint64_t upload, uint64_t step, absl::Time now);
  std::set<uint32_t> HoldersOfState() const;
  // What was computed before `step` counts as completed when a snapshot has the state that the servers have.
  void SaveState(uint64_t step);
  // In a new epoch of servers that were of these states: all go back to the saved one if they differ.
  void AgreeOnState(const ServersState& others, absl::Time now);
  void RestoreState();

  // Policy (coordinator_policy.cc).
  // The job goes on by these settings; by what auto begins with, if they are that.
  absl::Status GoOnWith(const PolicySettings& settings, absl::Time now);
  // And by what auto has chosen, if that is to be in force.
  void TunePolicy(absl::Time now);
  // A new cluster epoch, by these rules; no step before `first_step` is begun in it.
  absl::Status GoOnBy(ApplyRules rules, uint64_t first_step, absl::Time now);
  void ApplyQuorum();
  // Of a job whose step keeps as many as its first one had; once that begins.
  absl::Status FixStepSamples();

  // Status (coordinator_status.cc).
  // What workers' steps are made of, and whether the job moves, from time to time.
  void NoteShares(absl::Time now);
  Expected WhatIsExpected() const;
  std::string WhatIsMissing(absl::Time now) const;
  std::string WhoHoldsUp() const;
  void ShowTuning(StatusReply* reply) const;
  void ShowProgress(absl::Time now, StatusReply* reply) const;
  void ShowMembers(const ParamStats& stats, absl::Time now, StatusReply* reply) const;
  void ShowMember(WorkerId worker, const Membership::Member& member, MemberStatus* out) const;

  const Options options_;
  const CoordinatorPorts ports_;
  CoordinatorMetrics metrics_;
  ServerAddress frames_;  // Where this server takes frames besides by gRPC.

  // The job, and by which policy it is trained now.
  JobConfig job_;
  std::string optimizer_;
  uint64_t cluster_epoch_;
  absl::Time epoch_retry_at_ = absl::InfiniteFuture();
  std::string epoch_error_;  // Why there is none with the servers that are there.
  DurableJobRecord record_;
  JobParameters parameters_;
  JobLifecycle lifecycle_;

  // Workers and their work.
  Membership membership_;
  LeaseScheduler work_;
  ProgressWatch progress_;
  WorkerStates states_;
  struct StateUnderWay {
    std::optional<uint64_t> restored_as;  // The servers go back to the saved state, under this number.
    std::optional<uint64_t> unsaved;      // No snapshot has the state before this step yet.
    absl::Time retry_at = absl::InfiniteFuture();
    // Before, workers that have the state may not have had the time to say so after a restart. (One that
    // comes later has to begin anew.)
    static constexpr absl::Duration kReturnGrace = absl::Seconds(3);
    absl::Time no_takes_before = absl::InfinitePast();
  };
  StateUnderWay state_;
  absl::Time watch_at_ = absl::InfinitePast();
  // What is shown of workers that are gone: what the data plane knew of them.
  std::map<WorkerId, WorkerPushStats> last_stats_;

  // Tuning.
  CodecTuner codec_tuner_;
  AutoPolicy auto_policy_;
  PushSizes push_sizes_;

  // How it goes.
  StepShares shares_;
  absl::Time shares_at_ = absl::InfinitePast();
  struct Standing {
    StandstillWatch watch;
    std::string waits_for;    // As heartbeats' answers say it; empty while the job moves.
    std::string start_error;  // Why it cannot begin; empty if it can.
  };
  Standing standing_;
  bool said_unlike_rates_ = false;
  DivergenceWatch divergence_;
  EvaluationHistory evaluations_;
  RollbackRecord rollback_;
  uint64_t restored_generation_ = 0;
};

}  // namespace recon
