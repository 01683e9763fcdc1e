#include "server/control/coordinator.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/data_epoch.h"
#include "common/base/limits.h"
#include "common/base/log.h"
#include "common/base/status_macros.h"

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

}  // namespace

Coordinator::Coordinator(const Options& options, const CoordinatorPorts& ports, Metrics* metrics)
    : options_(options),
      ports_(ports),
      members_(metrics->Gauge("recon_server_members", "Workers alive")),
      samples_completed_(metrics->Gauge("recon_server_samples_completed", "Training samples completed")),
      accuracy_(metrics->Gauge("recon_server_test_accuracy", "Accuracy of the last evaluation")),
      standing_seconds_(metrics->Gauge("recon_server_standing_seconds",
                                       "For how long a running job has not moved; 0 if it moves")),
      log_bytes_(metrics->Gauge("recon_server_log_bytes", "What the push log takes on the disk")),
      log_budget_bytes_(metrics->Gauge("recon_server_log_budget_bytes", "What it may take")),
      departures_(metrics->Counter("recon_server_departures_total", "Workers that left or were evicted")),
      splits_without_push_(metrics->Counter(
          "recon_server_splits_without_push_total",
          "Training splits completed with nothing to push: empty files, or gradients that were not finite")),
      residuals_lost_(
          metrics->Counter("recon_server_residuals_lost_total",
                           "Workers that went, or were given up, with gradient values kept back")),
      auto_codec_rung_(
          metrics->Gauge("recon_server_auto_codec_rung",
                         "What --codec auto stands for: 0 fp32, the higher the more is left out")),
      diverged_(metrics->Gauge("recon_server_diverged",
                               "1 when training has diverged since the last rollback, or the start")),
      job_(options.job),
      optimizer_(options.optimizer),
      cluster_epoch_(options.cluster_epoch),
      membership_(options.timeouts),
      // 2^40 grants per cluster epoch: numbers never meet those of another.
      leases_(absl::Milliseconds(options.job.lease_duration_ms()), options.cluster_epoch << 40),
      progress_(absl::Milliseconds(options.job.lease_duration_ms())),
      codec_tuner_(options.job.refused_codecs()) {
  ApplyQuorum();
  if (!IsAuto(options_.policy)) return;
  auto_settings_ = options_.policy;
  policy_tuner_.emplace(AutoLimits(auto_settings_));
}

absl::Status Coordinator::Recover(const std::optional<Manifest>& restored, absl::Time now) {
  if (restored) restored_generation_ = restored->generation();
  RECON_ASSIGN_OR_RETURN(record_, ports_.journal->LoadJob());
  RECON_ASSIGN_OR_RETURN(const std::vector<Completion> completions, ports_.journal->LoadCompletions());
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
  if (ports_.params->layout() == nullptr) {
    if (initial_ != nullptr) RECON_RETURN_IF_ERROR(initial_->Check(record_->model()));
    RECON_RETURN_IF_ERROR(ports_.params->DefineModel(record_->model()));
    if (initial_ != nullptr) LoadInitialValues();
  }
  const std::string difference = ModelDifference(record_->model(), ports_.params->layout()->model());
  if (!difference.empty()) {
    return absl::FailedPreconditionError(
        absl::StrCat("the snapshots are not of this data directory's job: ", difference));
  }
  RECON_RETURN_IF_ERROR(CheckSyncPeriods(job_, *ports_.params->layout()));
  WarnOfSmallLog();
  if (ports_.others != nullptr) ports_.others->SetModel(record_->model());
  RECON_RETURN_IF_ERROR(StartQueue(*record_));
  // Training before evaluations (their kinds sort so): a finished pass makes its evaluation's tasks.
  for (const Completion& completion : completions) {
    const auto task = queue_->Find(completion.kind(), completion.data_epoch(), SplitId(completion.split()));
    if (!task.ok() || task->begin != completion.begin() || task->end != completion.end()) {
      return absl::FailedPreconditionError(
          absl::StrCat("split ", completion.split(), " of data epoch ",
                       ShownDataEpoch(completion.data_epoch(), completion.kind() == LEASE_TRAIN),
                       " is completed but not part of this job: was --data-epochs lowered?"));
    }
    queue_->Complete(TaskOf(completion), completion.eval());
    NoteCompleted(completion);
    if (completion.kind() == LEASE_EVAL) NoteEvaluation(completion.data_epoch(), completion.unix_ms());
  }
  started_ = !completions.empty();
  if (started_) {
    no_grants_before_ = now + kReturnGrace;
    LogInfo("job resumed: {} of {} samples completed", queue_->samples_completed(),
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

bool Coordinator::AskForInitialValues(WorkerId worker) {
  if (initializer_ && *initializer_ != worker) {
    const Membership::Member* other = membership_.Find(*initializer_);
    if (other != nullptr && !other->gone) return false;
  }
  // It tries again: what has come stays.
  if (initializer_ == worker && initializer_epoch_ == cluster_epoch_) return true;
  initializer_ = worker;
  initializer_epoch_ = cluster_epoch_;
  ports_.params->AwaitInitialValues(worker, [this] { OnInitialValues(); });
  if (ports_.others != nullptr) ports_.others->AwaitInitialValues(worker);
  return true;
}

void Coordinator::LoadInitialValues() {
  initial_->Load([this](const absl::Status& loaded) {
    failure_ = loaded;
    if (loaded.ok()) OnInitialValues();
  });
}

void Coordinator::OnInitialValues() {
  if (!HasValues()) return;
  LogInfo("initial values are there");
  TakeInitialSnapshot();
}

bool Coordinator::HasValues() const {
  return ports_.params->has_values() && (ports_.others == nullptr || ports_.others->state().all_have_values);
}

void Coordinator::OnServersChanged(absl::Time now) {
  const OtherServers::State others = ports_.others->state();
  if (others.live) {
    if ((initializer_ || initial_ != nullptr) && !started_ && ports_.snapshots->status().generation() == 0)
      OnInitialValues();
    return;
  }
  if (!others.complete) return;
  epoch_retry_at_ = absl::InfiniteFuture();
  const absl::StatusOr<uint64_t> epoch =
      ports_.journal->NextClusterEpoch(std::max(cluster_epoch_, others.highest_epoch));
  if (!epoch.ok()) {
    LogError("no new cluster epoch: {}", epoch.status().message());
    epoch_retry_at_ = now + kSnapshotRetry;
    return;
  }
  cluster_epoch_ = *epoch;
  // A step that is closed for all of another's shards may be open for ours; more than that we have lost.
  if (job_.bound() == 0 && others.highest_frontier > ports_.steps->frontier() + 1) {
    ports_.steps->SkipTo(others.highest_frontier);
  }
  // The others first: they say "not yet" to whoever has registered again here, and never the reverse.
  ports_.others->BeginEpoch(cluster_epoch_);
  ports_.params->SetClusterEpoch(cluster_epoch_);
  LogInfo("all {} servers are there: cluster epoch {}", ports_.others->servers(), cluster_epoch_);
  if (HasValues() && (must_snapshot_ || ports_.others->state().needs_snapshot)) TakeInitialSnapshot();
  must_snapshot_ = false;
}

void Coordinator::TakeInitialSnapshot() {
  // Before any work: a job that has begun can always be restored, and so can servers that have begun a log.
  snapshot_retry_at_ = absl::InfiniteFuture();
  ports_.snapshots->Take(ports_.snapshots->status().generation() == 0 ? "initial" : "recovered",
                         [this](const absl::Status& taken, absl::Time now) {
                           if (!taken.ok()) snapshot_retry_at_ = now + kSnapshotRetry;
                           StartIfReady();
                         });
}

void Coordinator::StartIfReady() {
  if (started_ || !HasValues() || ports_.snapshots->status().generation() == 0) return;
  if (membership_.alive() < static_cast<int>(job_.workers_min())) return;
  if (const absl::Status fixed = FixStepSamples(); !fixed.ok()) {
    LogError("the job cannot start yet: {}", fixed.message());
    return;
  }
  started_ = true;
  LogInfo("job started with {} workers", membership_.alive());
  // All at once: the first synchronous step waits for everybody who was there at the start.
  for (const auto& [worker, member] : membership_.members()) {
    if (!member.gone) ports_.steps->Activate(worker, next_steps_[worker], /*resumes=*/false);
  }
}

void Coordinator::FinishIfDone(absl::Time now) {
  if (finishing_ || draining_ || !queue_ || !queue_->finished()) return;
  if (now < final_retry_at_) return;
  finishing_ = true;
  LogInfo("all {} data epochs are completed", job_.data_epochs());
  ports_.snapshots->TakeLast([this](const absl::Status& taken, absl::Time at) {
    finished_ = taken.ok();
    finishing_ = taken.ok();
    finished_at_ = at;
    if (!taken.ok()) final_retry_at_ = at + kSnapshotRetry;
  });
}

void Coordinator::Tick(absl::Time now) {
  for (const WorkerId worker : membership_.Expire(now)) {
    NoteResidualLost(membership_.Find(worker)->name, membership_.Find(worker)->progress);
    Depart(worker, "evicted, no heartbeat");
  }
  for (const LeaseTable::Lease& lease : leases_.TakeExpired(now)) {
    LogWarn("lease of {} splits from {} (data epoch {}) by worker {} expired", lease.task.splits,
            lease.task.split.value(), ShownDataEpoch(lease.task.data_epoch, lease.task.kind == LEASE_TRAIN),
            lease.holder.value());
    queue_->Return(lease.task);
  }
  if (now >= watch_at_) WatchProgress(now);
  NoteFastest();
  if (now >= shares_at_) NoteShares(now);
  members_.Set(membership_.alive());
  if (queue_) samples_completed_.Set(static_cast<double>(queue_->samples_completed()));
  if (!evaluations_.empty()) accuracy_.Set(evaluations_.back().accuracy());
  ports_.params->Tick(now);
  if (ports_.others != nullptr) ports_.others->Tick(now);
  if (now >= epoch_retry_at_) OnServersChanged(now);
  if (codec_tuner_.Tick(now)) {
    LogInfo("codec auto: {}, parameters in {}: {}", codec_tuner_.choice().push(),
            codec_tuner_.choice().pull(), codec_tuner_.reason());
  }
  auto_codec_rung_.Set(static_cast<double>(codec_tuner_.rung_number()));
  if (phase() == PHASE_RUNNING) {
    TunePolicy(now);
    ports_.snapshots->Tick(now);
  }
  if (now >= snapshot_retry_at_) TakeInitialSnapshot();
  FinishIfDone(now);
}

bool Coordinator::DoneAndQuiet(absl::Time now, absl::Duration grace) const {
  // Not before whoever follows the job has seen its end.
  if (now - finished_at_ < grace / 3) return false;
  return finished_ && (membership_.alive() == 0 || now - finished_at_ > grace);
}

}  // namespace recon
