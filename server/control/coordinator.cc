#include "server/control/coordinator.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/data_epoch.h"
#include "common/base/log.h"
#include "common/base/status_macros.h"

namespace recon {

Coordinator::Coordinator(const Options& options, const CoordinatorPorts& ports, Metrics* metrics)
    : options_(options),
      ports_(ports),
      metrics_(metrics),
      job_(options.job),
      optimizer_(options.optimizer),
      cluster_epoch_(options.cluster_epoch),
      record_(ports.journal),
      parameters_(ports, [this] { StartIfReady(); }),
      membership_(options.timeouts),
      // 2^40 grants per cluster epoch: numbers never meet those of another.
      work_(absl::Milliseconds(options.job.lease_duration_ms()), options.cluster_epoch << 40),
      progress_(absl::Milliseconds(options.job.lease_duration_ms())),
      codec_tuner_(options.job.refused_codecs()),
      auto_policy_(options.policy),
      evaluations_(options.job.data_epochs()) {
  states_.BeginEpoch(cluster_epoch_);
  ApplyQuorum();
}

absl::Status Coordinator::Recover(const std::optional<Manifest>& restored) {
  if (restored) restored_generation_ = restored->generation();
  RECON_RETURN_IF_ERROR(record_.Load());
  RECON_ASSIGN_OR_RETURN(const std::vector<Completion> completions, ports_.journal->LoadCompletions());
  if (!record_.known()) {
    if (completions.empty()) return absl::OkStatus();
    return absl::FailedPreconditionError(absl::StrCat(
        completions.size(),
        " splits are completed, but nothing says of what job: the control database was lost, and "
        "neither snapshot nor push log has it"));
  }
  RECON_RETURN_IF_ERROR(record_.CheckFlags(job_));
  RECON_RETURN_IF_ERROR(parameters_.Restore(record_.get().model(), job_));
  RECON_RETURN_IF_ERROR(StartQueue(record_.get()));
  // Training before evaluations (their kinds sort so): a finished pass makes its evaluation's tasks.
  for (const Completion& completion : completions) {
    RECON_RETURN_IF_ERROR(work_.Restore(completion));
    if (completion.kind() == LEASE_EVAL) NoteEvaluation(completion.data_epoch(), completion.unix_ms());
  }
  if (completions.empty()) return absl::OkStatus();
  lifecycle_.Resume();
  LogInfo("job resumed: {} of {} samples completed", work_.samples_completed(),
          record_.get().train_samples() * job_.data_epochs());
  return absl::OkStatus();
}

absl::Status Coordinator::StartQueue(const JobRecord& record) {
  SplitQueue::Config config;
  config.train_samples = record.train_samples();
  config.test_samples = record.test_samples();
  config.split_samples = record.split_samples();
  config.eval_split_samples = record.eval_split_samples();
  config.data_epochs = job_.data_epochs();
  config.passes_in_turn = job_.means();
  return work_.Start(config);
}

void Coordinator::OnServersChanged(absl::Time now) {
  const ServersState others = ports_.others->state();
  if (others.live) return parameters_.OnServersLive(lifecycle_.started());
  if (!others.complete) return;
  epoch_retry_at_ = absl::InfiniteFuture();
  const absl::StatusOr<uint64_t> epoch =
      ports_.journal->NextClusterEpoch(std::max(cluster_epoch_, others.highest_epoch));
  if (!epoch.ok()) {
    LogError("no new cluster epoch: {}", epoch.status().message());
    epoch_error_ = std::string(epoch.status().message());
    epoch_retry_at_ = now + JobLifecycle::kSnapshotRetry;
    return;
  }
  cluster_epoch_ = *epoch;
  epoch_error_.clear();
  // A synchronous step that is closed for all of another's shards may be open for ours. What goes beyond that
  // we have lost: nobody may begin so far behind the others, who would wait for him.
  const uint64_t known = ports_.steps->frontier() + (job_.bound() == 0 ? 1 : 0);
  if (job_.bound() >= 0 && others.highest_frontier > known) ports_.steps->SkipTo(others.highest_frontier);
  // The others first: they say "not yet" to whoever has registered again here, and never the reverse.
  ports_.others->BeginEpoch(cluster_epoch_);
  ports_.params->SetClusterEpoch(cluster_epoch_);
  LogInfo("all {} servers are there: cluster epoch {}", ports_.others->servers(), cluster_epoch_);
  if (job_.means()) AgreeOnState(others, now);
  parameters_.OnEpochBegun();
}

void Coordinator::StartIfReady() {
  if (lifecycle_.started() || !parameters_.HasValues() || !parameters_.saved()) return;
  if (membership_.alive() < static_cast<int>(job_.workers_min())) return;
  if (const absl::Status fixed = FixStepSamples(); !fixed.ok()) {
    LogError("the job cannot start yet: {}", fixed.message());
    standing_.start_error = std::string(fixed.message());
    return;
  }
  standing_.start_error.clear();
  lifecycle_.Start();
  LogInfo("job started with {} workers", membership_.alive());
  // Where workers have the optimizer, a step waits for whoever has the state, and has been given work.
  if (job_.means()) return;
  // All at once: the first synchronous step waits for everybody who was there at the start.
  for (const auto& [worker, member] : membership_.members()) {
    if (!member.gone) ports_.steps->Activate(worker, member.next_step, /*resumes=*/false);
  }
}

void Coordinator::FinishIfDone(absl::Time now) {
  if (!work_.finished() || !lifecycle_.BeginFinish(now)) return;
  LogInfo("all {} data epochs are completed", job_.data_epochs());
  ports_.snapshots->TakeLast(
      [this](const absl::Status& taken, absl::Time at) { lifecycle_.EndFinish(taken.ok(), at); });
}

void Coordinator::NoteServing(absl::Time now, bool all_in_snapshot) {
  lifecycle_.NoteServing(now);
  if (lifecycle_.started()) state_.no_takes_before = now + StateUnderWay::kReturnGrace;
  if (!all_in_snapshot || !work_.finished() || !lifecycle_.BeginFinish(now)) return;
  LogInfo("the job was done before: all {} data epochs are completed, and snapshot {} has the outcome",
          job_.data_epochs(), restored_generation_);
  lifecycle_.EndFinish(/*published=*/true, now);
}

void Coordinator::Tick(absl::Time now) {
  for (const WorkerId worker : membership_.Expire(now)) {
    NoteResidualLost(membership_.Find(worker)->name, membership_.Find(worker)->progress);
    Depart(worker, "evicted, no heartbeat");
  }
  for (const LeaseTable::Lease& lease : work_.TakeBackExpired(now)) {
    LogWarn("lease of {} splits from {} (data epoch {}) by worker {} expired", lease.task.splits,
            lease.task.split.value(), ShownDataEpoch(lease.task.data_epoch, lease.task.kind == LEASE_TRAIN),
            lease.holder.value());
  }
  if (now >= watch_at_) WatchProgress(now);
  if (job_.means()) AskForState(now);
  push_sizes_.NoteFastest(membership_);
  if (now >= shares_at_) NoteShares(now);
  ports_.params->Tick(now);
  if (ports_.others != nullptr) ports_.others->Tick(now);
  if (now >= epoch_retry_at_) OnServersChanged(now);
  if (codec_tuner_.Tick(now)) {
    LogInfo("codec auto: {}, parameters in {}: {}", codec_tuner_.choice().push(),
            codec_tuner_.choice().pull(), codec_tuner_.reason());
  }
  const std::vector<EvalEntry>& evaluated = evaluations_.entries();
  metrics_.Show(membership_.alive(), work_.samples_completed(),
                evaluated.empty() ? std::nullopt : std::make_optional(evaluated.back().accuracy()),
                codec_tuner_.rung_number());
  if (trains()) {
    if (!lifecycle_.ending()) TunePolicy(now);
    ports_.snapshots->Tick(now);
  }
  parameters_.Tick(now);
  FinishIfDone(now);
}

}  // namespace recon
