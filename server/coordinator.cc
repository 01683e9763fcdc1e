#include "server/coordinator.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/clock.h"
#include "common/base/copied_bytes.h"
#include "common/base/limits.h"
#include "common/base/log.h"
#include "common/base/status_macros.h"
#include "server/scheduler/lease_size.h"
#include "server/scheduler/local_steps.h"

namespace recon {
namespace {

Task TaskOf(const Completion& completion) {
  Task task;
  task.kind = completion.kind();
  task.data_epoch = completion.data_epoch();
  task.split = SplitId(completion.split());
  task.begin = completion.begin();
  task.end = completion.end();
  return task;
}

absl::Status Differs(const char* what, uint64_t seen, uint64_t expected) {
  return absl::FailedPreconditionError(
      absl::StrCat(what, " is ", seen, ", this job was started with ", expected));
}

// After a restart no split is granted for so long: workers that were computing one register again first (they
// try at least once a second) and go on with it.
constexpr absl::Duration kReturnGrace = absl::Seconds(1);
// Between two tries of a snapshot that the job cannot go on without.
constexpr absl::Duration kSnapshotRetry = absl::Seconds(2);
// And of a change of policy that has to wait: each stops the job for a moment.
constexpr absl::Duration kPolicyRetry = absl::Seconds(30);
// Between two looks at who stands still.
constexpr absl::Duration kWatchInterval = absl::Milliseconds(200);

}  // namespace

Coordinator::Coordinator(const Options& options, ParamServer* params, ControlJournal* journal,
                         SnapshotService* snapshots, Cluster* cluster, Metrics* metrics)
    : options_(options),
      params_(params),
      journal_(journal),
      snapshots_(snapshots),
      cluster_(cluster),
      members_(metrics->Gauge("recon_server_members", "Workers alive")),
      samples_completed_(metrics->Gauge("recon_server_samples_completed", "Training samples completed")),
      accuracy_(metrics->Gauge("recon_server_test_accuracy", "Accuracy of the last evaluation")),
      departures_(metrics->Counter("recon_server_departures_total", "Workers that left or were evicted")),
      residuals_lost_(
          metrics->Counter("recon_server_residuals_lost_total",
                           "Workers that went, or were given up, with gradient values kept back")),
      auto_codec_rung_(
          metrics->Gauge("recon_server_auto_codec_rung",
                         "What --codec auto stands for: 0 fp32, the higher the more is left out")),
      job_(options.job),
      optimizer_(options.optimizer),
      cluster_epoch_(options.cluster_epoch),
      membership_(options.timeouts),
      // 2^40 grants per cluster epoch: numbers never meet those of another.
      leases_(absl::Milliseconds(options.job.lease_duration_ms()), options.cluster_epoch << 40),
      progress_(absl::Milliseconds(options.job.lease_duration_ms())),
      codec_tuner_(options.job.refused_codecs()),
      lane_("control") {
  if (!IsAuto(options_.policy)) return;
  auto_settings_ = options_.policy;
  policy_tuner_.emplace(AutoLimits(auto_settings_));
}

absl::Status Coordinator::Recover(const std::optional<Manifest>& restored) {
  if (restored) restored_generation_ = restored->generation();
  RECON_ASSIGN_OR_RETURN(record_, journal_->LoadJob());
  RECON_ASSIGN_OR_RETURN(const std::vector<Completion> completions, journal_->LoadCompletions());
  if (!record_) {
    if (completions.empty()) return absl::OkStatus();
    return absl::FailedPreconditionError(absl::StrCat(
        completions.size(),
        " splits are completed, but nothing says of what job: the control database was lost, and "
        "neither snapshot nor push log has it"));
  }
  if (record_->split_samples() != job_.split_samples()) {
    return Differs("--split-samples", job_.split_samples(), record_->split_samples());
  }
  if (record_->eval_split_samples() != job_.eval_split_samples()) {
    return Differs("--eval-split-samples", job_.eval_split_samples(), record_->eval_split_samples());
  }
  if (record_->seed() != job_.seed()) return Differs("--seed", job_.seed(), record_->seed());
  if (params_->layout() == nullptr) RECON_RETURN_IF_ERROR(params_->DefineModel(record_->model()));
  const std::string difference = ModelDifference(record_->model(), params_->layout()->model());
  if (!difference.empty()) {
    return absl::FailedPreconditionError(
        absl::StrCat("the snapshots are not of this data directory's job: ", difference));
  }
  RECON_RETURN_IF_ERROR(CheckSyncPeriods(job_, *params_->layout()));
  if (cluster_ != nullptr) cluster_->SetModel(record_->model());
  RECON_RETURN_IF_ERROR(StartQueue(*record_));
  // Training before evaluations (their kinds sort so): a finished pass makes its evaluation's tasks.
  for (const Completion& completion : completions) {
    const auto task = queue_->Find(completion.kind(), completion.data_epoch(), SplitId(completion.split()));
    if (!task.ok() || task->begin != completion.begin() || task->end != completion.end()) {
      return absl::FailedPreconditionError(
          absl::StrCat("split ", completion.split(), " of data epoch ", completion.data_epoch(),
                       " is completed but not part of this job: was --data-epochs lowered?"));
    }
    queue_->Complete(TaskOf(completion), completion.eval());
    if (completion.kind() == LEASE_EVAL) NoteEvaluation(completion.data_epoch(), completion.unix_ms());
  }
  started_ = !completions.empty();
  if (started_) {
    no_grants_before_ = Now() + kReturnGrace;
    spdlog::info("job resumed: {} of {} samples completed", queue_->samples_completed(),
                 record_->train_samples() * job_.data_epochs());
  }
  return absl::OkStatus();
}

absl::Status Coordinator::StartQueue(const JobRecord& record) {
  SplitQueue::Config config;
  config.train_samples = record.train_samples();
  config.test_samples = record.test_samples();
  config.split_samples = record.split_samples();
  config.eval_split_samples = record.eval_split_samples();
  config.data_epochs = job_.data_epochs();
  RECON_ASSIGN_OR_RETURN(queue_, SplitQueue::Create(config));
  return absl::OkStatus();
}

JobPhase Coordinator::phase() const {
  if (finished_) return PHASE_FINISHED;
  if (draining_) return PHASE_DRAINING;
  return started_ && HasValues() ? PHASE_RUNNING : PHASE_WAITING;
}

absl::StatusOr<WorkerId> Coordinator::CheckIdentity(const WorkerIdentity& identity, absl::Time now) {
  if (identity.cluster_epoch() != cluster_epoch_) {
    return absl::FailedPreconditionError(
        absl::StrCat("cluster epoch ", identity.cluster_epoch(), ", the server's is ", cluster_epoch_));
  }
  const WorkerId worker(identity.worker());
  RECON_RETURN_IF_ERROR(membership_.Hear(worker, Incarnation(identity.incarnation()), now));
  return worker;
}

absl::Status Coordinator::AdoptModel(const RegisterRequest& request) {
  const auto layout = params_->layout();
  if (layout != nullptr) {
    const std::string difference = ModelDifference(layout->model(), request.model());
    if (!difference.empty()) {
      return absl::InvalidArgumentError(absl::StrCat("the job trains another model: ", difference));
    }
    return CheckSyncPeriods(job_, *layout);  // It may be another job's snapshot's.
  }
  RECON_ASSIGN_OR_RETURN(const ParamLayout its_layout, ParamLayout::Create(request.model()));
  RECON_RETURN_IF_ERROR(CheckSyncPeriods(job_, its_layout));
  RECON_RETURN_IF_ERROR(params_->DefineModel(request.model()));
  spdlog::info("model {}: {} parameters in {} shards", request.model().name(), params_->layout()->params(),
               params_->layout()->shard_count());
  if (cluster_ != nullptr) cluster_->SetModel(request.model());
  return absl::OkStatus();
}

absl::Status Coordinator::CheckDataset(const RegisterRequest& request) const {
  if (request.train_samples() != record_->train_samples()) {
    return absl::InvalidArgumentError(absl::StrCat("the worker has ", request.train_samples(),
                                                   " training samples, the job has ",
                                                   record_->train_samples()));
  }
  if (request.test_samples() != record_->test_samples()) {
    return absl::InvalidArgumentError(absl::StrCat("the worker has ", request.test_samples(),
                                                   " test samples, the job has ", record_->test_samples()));
  }
  return absl::OkStatus();
}

absl::StatusOr<RegisterReply> Coordinator::Register(const RegisterRequest& request, absl::Time now) {
  if (request.name().empty() || request.name().size() > limits::kNameBytesMax || request.incarnation() == 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("worker name '", request.name(), "' of ", request.name().size(), " bytes (1 to ",
                     limits::kNameBytesMax, " allowed), incarnation ", request.incarnation(), " (0 is not)"));
  }
  if (request.held_size() > static_cast<int>(limits::kLeasesPerWorkerMax)) {
    return absl::InvalidArgumentError(
        absl::StrCat(request.held_size(), " leases, allowed are ", limits::kLeasesPerWorkerMax));
  }
  if (request.device().size() > limits::kNameBytesMax || request.codec().size() > limits::kNameBytesMax) {
    return absl::InvalidArgumentError(absl::StrCat("device of ", request.device().size(), " and codec of ",
                                                   request.codec().size(), " bytes, allowed are ",
                                                   limits::kNameBytesMax));
  }
  if (request.next_step() > limits::kStepMax || request.train_samples() > limits::kSamplesMax ||
      request.test_samples() > limits::kSamplesMax) {
    return absl::InvalidArgumentError(absl::StrCat(
        "next step ", request.next_step(), ", training samples ", request.train_samples(), ", test samples ",
        request.test_samples(), ": allowed are ", limits::kStepMax, " and ", limits::kSamplesMax));
  }
  RECON_RETURN_IF_ERROR(ParamLayout::Create(request.model()).status());
  if (!record_) {
    JobRecord record;
    *record.mutable_model() = request.model();
    record.set_train_samples(request.train_samples());
    record.set_test_samples(request.test_samples());
    record.set_split_samples(job_.split_samples());
    record.set_eval_split_samples(job_.eval_split_samples());
    record.set_seed(job_.seed());
    RECON_RETURN_IF_ERROR(StartQueue(record));
    RECON_RETURN_IF_ERROR(AdoptModel(request));
    RECON_RETURN_IF_ERROR(journal_->SaveJob(record));
    record_ = record;
  }
  RECON_RETURN_IF_ERROR(AdoptModel(request));
  RECON_RETURN_IF_ERROR(CheckDataset(request));
  // Its numbers are of a time when nobody waited for others. It cannot go back, and would wait until all have
  // come so far: they go on from there instead. (Of several servers each would have to.)
  const uint64_t reach =
      params_->frontier() + limits::kStepsAheadMax + static_cast<uint64_t>(std::max(0, job_.bound()));
  if (job_.bound() >= 0 && cluster_ == nullptr && request.next_step() > reach) {
    if (request.next_step() >= limits::kStepMax / 2) {
      return absl::InvalidArgumentError(
          absl::StrCat("next step ", request.next_step(), ", the job's is ", params_->frontier()));
    }
    spdlog::info("worker {} is at step {}, the job at {}: all go on from there", request.name(),
                 request.next_step(), params_->frontier());
    RECON_RETURN_IF_ERROR(GoOnBy(params_->rules(), request.next_step()));
  }
  if (cluster_ != nullptr && !cluster_->live()) return absl::UnavailableError(cluster_->Missing());
  RECON_ASSIGN_OR_RETURN(const WorkerId worker, journal_->WorkerIdFor(request.name()));

  Membership::Member member;
  member.name = request.name();
  member.incarnation = Incarnation(request.incarnation());
  member.device = request.device();
  member.codec = request.codec();
  member.simulated = request.simulated();
  const Membership::Member* before = membership_.Find(worker);
  const WorkerProgress progress_before = before == nullptr ? WorkerProgress() : before->progress;
  const bool replaces = before != nullptr && !before->gone && before->incarnation != member.incarnation;
  const bool renews = before != nullptr && !before->gone && before->incarnation == member.incarnation;
  RECON_RETURN_IF_ERROR(membership_.Admit(worker, member, now));
  if (replaces) {
    NoteResidualLost(request.name(), progress_before);
    ReturnTasks(leases_.TakeAllOf(worker));
    codec_tuner_.Forget(worker);
    progress_.Forget(worker);
    if (policy_tuner_) policy_tuner_->Forget(worker);
    Expel(worker);
  }
  Admit(worker, member.incarnation, request.next_step());

  next_steps_[worker] = request.next_step();
  progress_.Excuse(worker, now);
  if (!renews) {
    spdlog::info("worker {} {}: number {}, {}, codec {}, {} alive", request.name(),
                 replaces ? "replaced" : "joined", worker.value(), request.device(), request.codec(),
                 membership_.alive());
  }

  RegisterReply reply;
  reply.set_worker(worker.value());
  reply.set_cluster_epoch(cluster_epoch_);
  reply.set_has_values(HasValues());
  *reply.mutable_job() = job_;
  *reply.mutable_codec_choice() = codec_tuner_.choice();
  reply.set_shared_memory(shared_memory_);
  reply.set_snapshot_dir(options_.snapshot_dir);
  const SnapshotStatus snapshot = snapshots_->status();
  reply.set_snapshot_generation(snapshot.generation());
  reply.set_snapshot_root(snapshot.state_root());
  if (cluster_ != nullptr) {
    for (ServerAddress& server : cluster_->Addresses()) *reply.add_servers() = std::move(server);
  }
  AdoptLeases(request, worker, now, &reply);
  // Asynchronous workers count steps of their own: a jump to where others are would look like an error.
  reply.set_start_step(job_.bound() < 0 ? request.next_step() : params_->GetStats().frontier_step);
  const bool trains = std::any_of(reply.adopted().begin(), reply.adopted().end(),
                                  [](const Lease& lease) { return lease.kind() == LEASE_TRAIN; });
  if (trains) reply.set_start_step(params_->Activate(worker, request.next_step(), /*resumes=*/true));
  StartIfReady();
  return reply;
}

void Coordinator::AdoptLeases(const RegisterRequest& request, WorkerId worker, absl::Time now,
                              RegisterReply* reply) {
  ReturnTasks(leases_.TakeAllOf(worker));
  for (const Lease& held : request.held()) {
    // No lease that was ever granted is larger.
    if (held.splits() > limits::kLeaseSplitsMax) continue;
    const auto task =
        queue_->Find(held.kind(), held.data_epoch(), SplitId(held.split()), std::max(1u, held.splits()));
    if (!task.ok()) continue;
    if (const std::optional<Task> rest = queue_->TakeRest(*task)) {
      *reply->add_adopted() = ToLease(*rest, leases_.Grant(*rest, worker, now));
    }
  }
}

Lease Coordinator::ToLease(const Task& task, LeaseId id) const {
  Lease lease;
  lease.set_lease(id.value());
  lease.set_kind(task.kind);
  lease.set_data_epoch(task.data_epoch);
  lease.set_split(task.split.value());
  lease.set_splits(task.splits);
  lease.set_begin(task.begin);
  lease.set_end(task.end);
  return lease;
}

uint32_t Coordinator::LocalStepsOf(WorkerId worker) {
  const uint32_t steps = job_.local().steps();
  if (!job_.policy().local_steps_by_speed()) return steps;
  return LocalStepsBySpeed(steps, membership_.Find(worker)->progress.batch_seconds(), fastest_batch_seconds_);
}

void Coordinator::NoteFastest() {
  fastest_batch_seconds_ = 0;
  for (const auto& [worker, member] : membership_.members()) {
    const double seconds = member.progress.batch_seconds();
    const bool first = fastest_batch_seconds_ == 0;
    if (!member.gone && seconds > 0 && (first || seconds < fastest_batch_seconds_)) {
      fastest_batch_seconds_ = seconds;
    }
  }
}

absl::StatusOr<HeartbeatReply> Coordinator::Heartbeat(const HeartbeatRequest& request, absl::Time now) {
  RECON_ASSIGN_OR_RETURN(const WorkerId worker, CheckIdentity(request.identity(), now));
  if (request.next_step() > limits::kStepMax) {
    return absl::InvalidArgumentError(
        absl::StrCat("next step ", request.next_step(), ", allowed are ", limits::kStepMax));
  }
  if (request.progress().codec().size() > limits::kProgressTextBytesMax) {
    return absl::InvalidArgumentError(absl::StrCat("codec of ", request.progress().codec().size(),
                                                   " bytes, allowed are ", limits::kProgressTextBytesMax));
  }
  membership_.Find(worker)->progress = request.progress();
  params_->NoteAcknowledged(worker, request.next_step());
  HeartbeatReply reply;
  const StepWork& work = request.progress().step_work();
  progress_.Report(worker, request.progress().batches(), now);
  if (request.progress().waiting()) progress_.Excuse(worker, now);
  if (policy_tuner_) {
    RECON_RETURN_IF_ERROR(policy_tuner_->Report(worker, work, request.progress().last_loss()));
  }
  if (work.automatic()) {
    RECON_RETURN_IF_ERROR(codec_tuner_.Report(worker, work));
  }
  *reply.mutable_codec_choice() = codec_tuner_.choice();
  reply.set_local_steps(LocalStepsOf(worker));
  reply.set_phase(phase());
  for (const uint64_t lease : request.leases()) {
    leases_.Renew(LeaseId(lease), worker, now);
    if (!leases_.Holds(LeaseId(lease), worker)) reply.add_lost(lease);
  }
  return reply;
}

bool Coordinator::AskForInitialValues(WorkerId worker) {
  if (initializer_ && *initializer_ != worker) {
    const Membership::Member* other = membership_.Find(*initializer_);
    if (other != nullptr && !other->gone) return false;
  }
  // It tries again: what has come stays.
  if (initializer_ == worker && initializer_epoch_ == cluster_epoch_) return true;
  initializer_ = worker;
  initializer_epoch_ = cluster_epoch_;
  params_->AwaitInitialValues(worker, [this] { lane_.Post([this] { OnInitialValues(); }); });
  if (cluster_ != nullptr) cluster_->AwaitInitialValues(worker);
  return true;
}

void Coordinator::OnInitialValues() {
  if (!HasValues()) return;
  spdlog::info("initial values are there");
  TakeInitialSnapshot();
}

bool Coordinator::HasValues() const {
  return params_->has_values() && (cluster_ == nullptr || cluster_->all_have_values());
}

void Coordinator::Admit(WorkerId worker, Incarnation incarnation, uint64_t next_step) {
  params_->Admit(worker, incarnation, next_step);
  if (cluster_ != nullptr) cluster_->Admit(worker, incarnation, next_step);
}

void Coordinator::Expel(WorkerId worker) {
  params_->Expel(worker);
  if (cluster_ != nullptr) cluster_->Expel(worker);
}

void Coordinator::OnServersChanged() {
  if (cluster_->live()) {
    if (initializer_ && !started_ && snapshots_->status().generation() == 0) OnInitialValues();
    return;
  }
  if (!cluster_->complete()) return;
  epoch_retry_at_ = absl::InfiniteFuture();
  const absl::StatusOr<uint64_t> epoch =
      journal_->NextClusterEpoch(std::max(cluster_epoch_, cluster_->highest_epoch()));
  if (!epoch.ok()) {
    spdlog::error("no new cluster epoch: {}", epoch.status().message());
    epoch_retry_at_ = Now() + kSnapshotRetry;
    return;
  }
  cluster_epoch_ = *epoch;
  // A step that is closed for all of another's shards may be open for ours; more than that we have lost.
  if (job_.bound() == 0 && cluster_->highest_frontier() > params_->frontier() + 1) {
    params_->SkipTo(cluster_->highest_frontier());
  }
  // The others first: they say "not yet" to whoever has registered again here, and never the reverse.
  cluster_->BeginEpoch(cluster_epoch_);
  params_->SetClusterEpoch(cluster_epoch_);
  spdlog::info("all {} servers are there: cluster epoch {}", cluster_->servers(), cluster_epoch_);
  if (HasValues() && (must_snapshot_ || cluster_->needs_snapshot())) TakeInitialSnapshot();
  must_snapshot_ = false;
}

void Coordinator::TakeInitialSnapshot() {
  // Before any work: a job that has begun can always be restored, and so can servers that have begun a log.
  snapshot_retry_at_ = absl::InfiniteFuture();
  snapshots_->Take(snapshots_->status().generation() == 0 ? "initial" : "recovered",
                   [this](const absl::StatusOr<SnapshotReply>& reply) {
                     lane_.Post([this, ok = reply.ok()] {
                       if (!ok) snapshot_retry_at_ = Now() + kSnapshotRetry;
                       StartIfReady();
                     });
                   });
}

void Coordinator::StartIfReady() {
  if (started_ || !HasValues() || snapshots_->status().generation() == 0) return;
  if (membership_.alive() < static_cast<int>(job_.workers_min())) return;
  started_ = true;
  spdlog::info("job started with {} workers", membership_.alive());
  // All at once: the first synchronous step waits for everybody who was there at the start.
  for (const auto& [worker, member] : membership_.members()) {
    if (!member.gone) params_->Activate(worker, next_steps_[worker]);
  }
}

absl::StatusOr<AcquireReply> Coordinator::Acquire(const AcquireRequest& request, absl::Time now) {
  RECON_ASSIGN_OR_RETURN(const WorkerId worker, CheckIdentity(request.identity(), now));
  AcquireReply reply;
  reply.set_phase(phase());
  if (!HasValues()) {
    // Only of a new job: a server that is away has some, and comes back with them.
    const bool none_anywhere =
        !started_ && snapshots_->status().generation() == 0 && (cluster_ == nullptr || cluster_->live());
    if (none_anywhere) reply.set_needs_initial_values(AskForInitialValues(worker));
    return reply;
  }
  StartIfReady();
  reply.set_phase(phase());
  if (phase() != PHASE_RUNNING || now < no_grants_before_) return reply;
  if (request.next_step() > limits::kStepMax) {
    return absl::InvalidArgumentError(
        absl::StrCat("next step ", request.next_step(), ", allowed are ", limits::kStepMax));
  }
  if (leases_.HeldBy(worker).size() >= limits::kLeasesPerWorkerMax) {
    return absl::ResourceExhaustedError(
        absl::StrCat("the worker holds ", limits::kLeasesPerWorkerMax, " leases"));
  }
  // What a synchronous step is made of must not hang on how fast somebody was: two runs end in equal bits.
  const absl::Duration target = job_.bound() == 0 ? absl::ZeroDuration() : options_.lease_target;
  const uint32_t splits =
      LeaseSplits(membership_.Find(worker)->progress.samples_per_second(), job_.split_samples(), target,
                  queue_->free_splits(), membership_.alive());
  const std::optional<Task> task = queue_->Next(splits);
  if (!task) {
    // Nothing to do until somebody fails: nobody shall wait for this worker's next step.
    params_->Deactivate(worker);
    FinishIfDone(now);
    reply.set_phase(phase());
    return reply;
  }
  *reply.mutable_lease() = ToLease(*task, leases_.Grant(*task, worker, now));
  progress_.Excuse(worker, now);
  reply.set_start_step(task->kind == LEASE_TRAIN ? params_->Activate(worker, request.next_step())
                                                 : request.next_step());
  return reply;
}

absl::StatusOr<CompleteReply> Coordinator::Complete(const CompleteRequest& request, absl::Time now) {
  RECON_ASSIGN_OR_RETURN(const WorkerId worker, CheckIdentity(request.identity(), now));
  const LeaseId lease(request.lease());
  if (!leases_.Holds(lease, worker)) {
    return absl::AbortedError(
        absl::StrCat("lease ", request.lease(), " is not held by this worker any more"));
  }
  if (request.abandon()) {
    queue_->Return(*leases_.Take(lease, worker));
    return CompleteReply();
  }
  const Task held = *leases_.Find(lease, worker);
  const SplitId split(request.split());
  if (split != held.split) {
    // Said again: the reply was lost.
    if (split.value() + 1 == held.split.value() && queue_->done(held.kind, held.data_epoch, split)) {
      return CompleteReply();
    }
    return absl::AbortedError(
        absl::StrCat("split ", split.value(), ": the next of the lease is ", held.split.value()));
  }
  RECON_ASSIGN_OR_RETURN(const Task task, queue_->Find(held.kind, held.data_epoch, split));
  Completion completion;
  completion.set_kind(task.kind);
  completion.set_data_epoch(task.data_epoch);
  completion.set_split(task.split.value());
  completion.set_begin(task.begin);
  completion.set_end(task.end);
  completion.set_worker(membership_.Find(worker)->name);
  completion.set_incarnation(request.identity().incarnation());
  completion.set_unix_ms(absl::ToUnixMillis(now));
  if (task.kind == LEASE_EVAL) {
    if (request.eval().samples() != task.end - task.begin ||
        request.eval().correct() > request.eval().samples()) {
      return absl::InvalidArgumentError(absl::StrCat("evaluation of ", request.eval().samples(), " samples, ",
                                                     request.eval().correct(), " correct; the lease has ",
                                                     task.end - task.begin));
    }
    *completion.mutable_eval() = request.eval();
  }
  // Durable before it is acknowledged.
  const absl::Status saved = journal_->SaveCompletion(completion);
  if (absl::IsAlreadyExists(saved)) {
    spdlog::error("{}", saved.message());
    leases_.TakeFirst(lease, worker, task);
    queue_->Complete(task, completion.eval());  // Or everybody would wait for it.
    if (const auto rest = leases_.Take(lease, worker)) queue_->Return(*rest);
    return absl::AbortedError(saved.message());
  }
  if (!saved.ok()) return saved;  // It may try again.
  leases_.TakeFirst(lease, worker, task);
  queue_->Complete(task, completion.eval());
  if (task.kind == LEASE_EVAL) NoteEvaluation(task.data_epoch, completion.unix_ms());
  FinishIfDone(now);
  return CompleteReply();
}

void Coordinator::NoteEvaluation(uint32_t data_epochs, int64_t unix_ms) {
  const std::optional<EvalResult> result = queue_->Evaluation(data_epochs);
  if (!result || result->samples() == 0) return;
  EvalEntry entry;
  entry.set_data_epochs(data_epochs);
  entry.set_samples(result->samples());
  entry.set_accuracy(static_cast<double>(result->correct()) / static_cast<double>(result->samples()));
  entry.set_loss(result->loss_sum() / static_cast<double>(result->samples()));
  entry.set_unix_ms(unix_ms);
  spdlog::info("data epoch {} of {}: test accuracy {:.4f}, loss {:.4f}", data_epochs, job_.data_epochs(),
               entry.accuracy(), entry.loss());
  evaluations_.push_back(entry);
}

void Coordinator::FinishIfDone(absl::Time now) {
  if (finishing_ || draining_ || !queue_ || !queue_->finished()) return;
  if (now < final_retry_at_) return;
  finishing_ = true;
  spdlog::info("all {} data epochs are completed", job_.data_epochs());
  snapshots_->Take("final", [this](const absl::StatusOr<SnapshotReply>& reply) {
    lane_.Post([this, ok = reply.ok()] {
      finished_ = ok;
      finishing_ = ok;
      finished_at_ = Now();
      if (!ok) final_retry_at_ = Now() + kSnapshotRetry;
    });
  });
}

absl::StatusOr<LeaveReply> Coordinator::Leave(const LeaveRequest& request) {
  const WorkerId worker(request.identity().worker());
  const Membership::Member* member = membership_.Find(worker);
  if (member == nullptr || member->gone || member->incarnation.value() != request.identity().incarnation()) {
    return absl::FailedPreconditionError(absl::StrCat("worker ", worker.value(), " is not a member"));
  }
  if (request.residual_norm() > 0 && request.reason() != "finished") {
    WorkerProgress progress = membership_.Find(worker)->progress;
    progress.set_residual_norm(request.residual_norm());
    NoteResidualLost(membership_.Find(worker)->name, progress);
  }
  Depart(worker, absl::StrCat("left (", request.reason(), ")"));
  return LeaveReply();
}

void Coordinator::Depart(WorkerId worker, const std::string& how) {
  departures_.Increment();
  membership_.Remove(worker);
  const std::vector<Task> tasks = leases_.TakeAllOf(worker);
  ReturnTasks(tasks);
  codec_tuner_.Forget(worker);
  progress_.Forget(worker);
  if (policy_tuner_) policy_tuner_->Forget(worker);
  Expel(worker);
  spdlog::info("worker {} {}: {} leases taken back, {} alive", membership_.Find(worker)->name, how,
               tasks.size(), membership_.alive());
}

void Coordinator::NoteResidualLost(const std::string& name, const WorkerProgress& progress) {
  if (progress.residual_norm() == 0) return;
  residuals_lost_.Increment();
  spdlog::warn(
      "worker {}: what its encoder had kept back for {:.0f} s is lost unless it comes back, L2 norm {:.3g}",
      name, progress.residual_age_seconds(), progress.residual_norm());
}

void Coordinator::ReturnTasks(const std::vector<Task>& tasks) {
  for (const Task& task : tasks) queue_->Return(task);
}

void Coordinator::Tick(absl::Time now) {
  for (const WorkerId worker : membership_.Expire(now)) {
    NoteResidualLost(membership_.Find(worker)->name, membership_.Find(worker)->progress);
    Depart(worker, "evicted, no heartbeat");
  }
  for (const LeaseTable::Lease& lease : leases_.TakeExpired(now)) {
    spdlog::warn("lease of {} splits from {} (data epoch {}) by worker {} expired", lease.task.splits,
                 lease.task.split.value(), lease.task.data_epoch, lease.holder.value());
    queue_->Return(lease.task);
  }
  if (now >= watch_at_) WatchProgress(now);
  NoteFastest();
  members_.Set(membership_.alive());
  if (queue_) samples_completed_.Set(static_cast<double>(queue_->samples_completed()));
  if (!evaluations_.empty()) accuracy_.Set(evaluations_.back().accuracy());
  params_->Tick(now);
  if (cluster_ != nullptr) cluster_->Tick(now);
  if (now >= epoch_retry_at_) OnServersChanged();
  if (codec_tuner_.Tick(now)) {
    spdlog::info("codec auto: {}, parameters in {}: {}", codec_tuner_.choice().push(),
                 codec_tuner_.choice().pull(), codec_tuner_.reason());
  }
  auto_codec_rung_.Set(static_cast<double>(codec_tuner_.rung_number()));
  if (phase() == PHASE_RUNNING) {
    TunePolicy(now);
    snapshots_->Tick(now);
  }
  if (now >= snapshot_retry_at_) TakeInitialSnapshot();
  FinishIfDone(now);
}

void Coordinator::WatchProgress(absl::Time now) {
  watch_at_ = now + kWatchInterval;
  for (const WorkerId worker : leases_.Holders()) {
    if (phase() != PHASE_RUNNING) progress_.Excuse(worker, now);
    if (!progress_.StandsStill(worker, now)) continue;
    const std::vector<Task> tasks = leases_.TakeAllOf(worker);
    ReturnTasks(tasks);
    params_->Deactivate(worker);
    spdlog::warn("worker {} is alive, but has computed nothing for {}: {} leases taken back",
                 membership_.Find(worker)->name, absl::FormatDuration(progress_.Patience(worker)),
                 tasks.size());
  }
}

bool Coordinator::DoneAndQuiet(absl::Time now, absl::Duration grace) const {
  // Not before whoever follows the job has seen its end.
  if (now - finished_at_ < grace / 3) return false;
  return finished_ && (membership_.alive() == 0 || now - finished_at_ > grace);
}

// Workers register again, learn what has changed, and send again what they had under way.
absl::Status Coordinator::GoOnBy(ApplyRules rules, uint64_t first_step) {
  RECON_ASSIGN_OR_RETURN(rules.cluster_epoch, journal_->NextClusterEpoch(cluster_epoch_));
  const absl::Status changed = params_->ChangeRules(rules, first_step);
  membership_.Excuse(Now());  // Nobody was heard of meanwhile.
  progress_.ExcuseAll(Now());
  if (changed.ok()) cluster_epoch_ = rules.cluster_epoch;
  return changed;
}

absl::Status Coordinator::GoOnWith(const PolicySettings& settings) {
  RECON_ASSIGN_OR_RETURN(Policy policy, ResolvePolicy(settings, options_.policy_base));
  RECON_RETURN_IF_ERROR(CheckRound(settings, policy, job_.batch_samples(), job_.split_samples()));
  if (const auto layout = params_->layout()) RECON_RETURN_IF_ERROR(CheckSyncPeriods(policy.job, *layout));
  if (finishing_ || finished_ || draining_) {
    return absl::FailedPreconditionError("the job is at its end: its policy is not changed any more");
  }
  policy.rules.job_id = options_.job_id;
  RECON_RETURN_IF_ERROR(GoOnBy(policy.rules, 0));
  TellWorkers(policy, &job_);
  optimizer_ = OptimizerName(policy.rules.optimizer.kind);
  codec_tuner_.Restart();
  spdlog::info("policy: {}; cluster epoch {}", policy.job.policy().ShortDebugString(), cluster_epoch_);
  return absl::OkStatus();
}

void Coordinator::TunePolicy(absl::Time now) {
  if (!policy_tuner_ || finishing_) return;
  if (policy_due_at_ == absl::InfiniteFuture()) {
    if (!policy_tuner_->Due(now)) return;
    std::map<WorkerId, PolicyTuner::Pushes> pushes;
    for (const auto& [worker, stats] : params_->GetStats().workers) {
      pushes[worker] = {stats.pushes, stats.staleness_mean * static_cast<double>(stats.pushes),
                        stats.waiting_seconds};
    }
    if (!policy_tuner_->Tick(now, pushes, codec_tuner_.settled())) return;
    policy_due_at_ = now;
    spdlog::info("policy auto: {}", policy_tuner_->reason());
  }
  if (now < policy_due_at_) return;
  const absl::Status status = GoOnWith(Chosen(auto_settings_, policy_tuner_->choice()));
  if (!status.ok()) spdlog::warn("policy auto: not yet: {}", status.message());
  policy_due_at_ = status.ok() ? absl::InfiniteFuture() : now + kPolicyRetry;
}

absl::StatusOr<SetPolicyReply> Coordinator::SetPolicy(const SetPolicyRequest& request) {
  if (IsAuto(request.policy()) && cluster_ != nullptr) {
    return absl::FailedPreconditionError("the policy of a job with several servers cannot be changed live");
  }
  RECON_RETURN_IF_ERROR(GoOnWith(request.policy()));
  policy_tuner_.reset();
  policy_due_at_ = absl::InfiniteFuture();
  if (IsAuto(request.policy())) {
    auto_settings_ = request.policy();
    policy_tuner_.emplace(AutoLimits(auto_settings_));
  }
  PolicyRecord record;
  *record.mutable_set() = request.policy();
  *record.mutable_flags() = options_.policy_of_flags;
  if (const absl::Status saved = journal_->SavePolicy(record); !saved.ok()) {
    return absl::UnavailableError(
        absl::StrCat("the policy is in force, but will not outlive this server: ", saved.message()));
  }
  SetPolicyReply reply;
  *reply.mutable_job() = job_;
  reply.set_cluster_epoch(cluster_epoch_);
  return reply;
}

absl::StatusOr<CompletionsReply> Coordinator::Completions() const {
  RECON_ASSIGN_OR_RETURN(const std::vector<Completion> completions, journal_->LoadCompletions());
  CompletionsReply reply;
  for (const Completion& completion : completions) *reply.add_completions() = completion;
  return reply;
}

absl::StatusOr<StatusReply> Coordinator::Status(absl::Time now) {
  const ParamServer::Stats stats = params_->GetStats();
  StatusReply reply;
  reply.set_phase(phase());
  reply.set_cluster_epoch(cluster_epoch_);
  *reply.mutable_job() = job_;
  reply.set_optimizer(optimizer_);
  reply.set_uptime_seconds(absl::ToDoubleSeconds(ProcessUptime()));
  reply.set_recover_ms(stats.recover_ms);
  reply.set_pushes(stats.pushes);
  reply.set_duplicate_pushes(stats.duplicates);
  reply.set_frontier_step(stats.frontier_step);
  reply.set_restored_generation(restored_generation_);
  *reply.mutable_snapshot() = snapshots_->status();
  for (const CopyReason reason : kCopyReasons) {
    CopiedBytesStatus* copied = reply.add_copied_bytes();
    copied->set_why(CopyReasonName(reason));
    copied->set_bytes(CopiedBytes(reason));
  }
  if (policy_tuner_) reply.set_policy_reason(policy_tuner_->reason());
  if (codec_tuner_.in_use()) {
    *reply.mutable_codec_choice() = codec_tuner_.choice();
    reply.set_codec_reason(codec_tuner_.reason());
    reply.set_codec_settled(codec_tuner_.settled());
  }
  for (const EvalEntry& entry : evaluations_) *reply.add_evaluations() = entry;
  if (cluster_ != nullptr) {
    for (ServerStatus& server : cluster_->Status(now)) *reply.add_servers() = std::move(server);
  }
  if (const auto layout = params_->layout(); layout != nullptr) {
    reply.set_model(layout->model().name());
    reply.set_parameters(layout->params());
    reply.set_shards(layout->shard_count());
  }
  if (record_) {
    reply.set_train_samples(record_->train_samples());
    reply.set_samples_total(record_->train_samples() * job_.data_epochs());
    reply.set_samples_completed(queue_->samples_completed());
    reply.set_data_epochs_completed(static_cast<double>(queue_->samples_completed()) /
                                    static_cast<double>(record_->train_samples()));
  }
  for (const auto& [worker, member] : membership_.members()) {
    MemberStatus* out = reply.add_members();
    out->set_name(member.name);
    out->set_worker(worker.value());
    out->set_incarnation(member.incarnation.value());
    out->set_device(member.device);
    out->set_codec(member.codec);
    out->set_simulated(member.simulated);
    const std::vector<LeaseId> leases = leases_.HeldBy(worker);
    out->set_leases(static_cast<uint32_t>(leases.size()));
    uint32_t splits = 0;
    for (const LeaseId lease : leases) splits += leases_.Find(lease, worker)->splits;
    out->set_splits(splits);
    out->set_local_steps(LocalStepsOf(worker));
    out->set_heartbeat_age_ms(absl::ToDoubleMilliseconds(now - member.last_heard));
    *out->mutable_progress() = member.progress;
    bool active = false;
    if (const auto found = stats.workers.find(worker); found != stats.workers.end()) {
      active = found->second.active;
      out->set_next_step(found->second.next_step);
      out->set_staleness_mean(found->second.staleness_mean);
      out->set_staleness_max(found->second.staleness_max);
      for (const uint64_t count : found->second.staleness_counts) out->add_staleness_counts(count);
      out->set_pushes(found->second.pushes);
    }
    out->set_state(member.gone                        ? MEMBER_GONE
                   : membership_.suspect(member, now) ? MEMBER_SUSPECT
                   : active                           ? MEMBER_ACTIVE
                                                      : MEMBER_IDLE);
    if (!member.gone) {
      reply.set_samples_per_second(reply.samples_per_second() + member.progress.samples_per_second());
    }
  }
  return reply;
}

}  // namespace recon
