// Of Coordinator: who works on what.

#include <algorithm>
#include <cmath>
#include <optional>
#include <set>
#include <string>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "common/base/limits.h"
#include "common/base/log.h"
#include "common/base/status_macros.h"
#include "server/control/coordinator.h"
#include "server/scheduler/device_share.h"
#include "server/scheduler/lease_size.h"
#include "server/scheduler/local_steps.h"

namespace recon {
namespace {

// Between two looks at who stands still.
constexpr absl::Duration kWatchInterval = absl::Milliseconds(200);

absl::Status CheckMetrics(const EvalResult& eval) {
  if (eval.metrics_size() > limits::kMetricsMax) {
    return absl::InvalidArgumentError(absl::StrCat("evaluation with ", eval.metrics_size(),
                                                   " measures, allowed are ", limits::kMetricsMax));
  }
  std::set<std::string> names;
  for (const MetricSum& metric : eval.metrics()) {
    if (metric.name().empty() || metric.name().size() > limits::kNameBytesMax ||
        !names.insert(metric.name()).second) {
      return absl::InvalidArgumentError(
          absl::StrCat("evaluation: a measure's name of ", metric.name().size(), " bytes, or one twice"));
    }
    if (!std::isfinite(metric.sum()) || !(metric.weight() > 0 && metric.weight() <= 1e15)) {
      return absl::InvalidArgumentError(
          absl::StrCat("evaluation: ", metric.name(), " is ", metric.sum(), " over ", metric.weight(),
                       ", expected a finite number over one above 0, 1e15 at most"));
    }
  }
  return absl::OkStatus();
}

}  // namespace

void Coordinator::AdoptLeases(const RegisterRequest& request, WorkerId worker, absl::Time now,
                              RegisterReply* reply) {
  ReturnTasks(leases_.TakeAllOf(worker));
  // What was pushed for them went with a rollback.
  if (request.history() != job_.history()) return;
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

uint32_t Coordinator::LocalStepsOf(WorkerId worker) const {
  const uint32_t steps = job_.local().steps();
  if (!job_.policy().local_steps_by_speed()) return steps;
  return LocalStepsBySpeed(steps, membership_.Find(worker)->progress.batch_seconds(), fastest_batch_seconds_);
}

uint32_t Coordinator::PushBatchesOf(WorkerId worker) const {
  const uint64_t samples = StepSamples();
  if (samples == 0) return LocalStepsOf(worker);
  // Those who compute share it. (At the start nobody has yet.)
  size_t workers = 0;
  size_t rank = 0;
  const auto& members = membership_.members();
  const bool begun = std::any_of(members.begin(), members.end(), [](const auto& entry) {
    return !entry.second.gone && entry.second.computes;
  });
  for (const auto& [other, member] : members) {
    if (member.gone || (begun && !member.computes && other != worker)) continue;
    if (other < worker) ++rank;
    ++workers;
  }
  const uint64_t batches = (samples + job_.batch_samples() / 2) / job_.batch_samples();
  return BatchesOfStep(batches, std::max<size_t>(1, workers), rank);
}

bool Coordinator::MayJoinLater(WorkerId worker) const {
  // Of parts of the parameters that are pushed in turn none can be sent again in another step.
  const bool in_parts = job_.local().fragments() > 1 || !job_.sync_periods().empty();
  if (job_.bound() < 0 || in_parts) return false;
  if (membership_.Find(worker)->computes) return false;
  const auto& members = membership_.members();
  return std::any_of(members.begin(), members.end(),
                     [](const auto& entry) { return !entry.second.gone && entry.second.computes; });
}

uint64_t Coordinator::TakePart(WorkerId worker, uint64_t next_step, bool resumes) {
  // Who was there at the job's start is waited for.
  if (ports_.steps->active(worker) || !MayJoinLater(worker))
    return ports_.steps->Activate(worker, next_step, resumes);
  // With a bound above 0 what it pushes counts at once, and it is waited for from its next lease on.
  if (job_.bound() == 0) ports_.steps->Park(worker);
  return std::max(next_step, ports_.steps->frontier());
}

absl::StatusOr<RejoinReply> Coordinator::Rejoin(const RejoinRequest& request, absl::Time now) {
  RECON_ASSIGN_OR_RETURN(const WorkerId worker, CheckIdentity(request.identity(), now));
  if (request.next_step() > limits::kStepMax) {
    return absl::InvalidArgumentError(
        absl::StrCat("next step ", request.next_step(), ", allowed are ", limits::kStepMax));
  }
  const std::vector<LeaseId> leases = leases_.HeldBy(worker);
  const bool trains = std::any_of(leases.begin(), leases.end(), [&](LeaseId lease) {
    return leases_.Find(lease, worker)->kind == LEASE_TRAIN;
  });
  if (job_.bound() != 0 || !trains) {
    return absl::AbortedError("the worker holds no lease of training data: its push counts no more");
  }
  membership_.Find(worker)->computes = true;
  progress_.Excuse(worker, now);
  RejoinReply reply;
  reply.set_step(ports_.steps->Activate(worker, request.next_step(), /*resumes=*/false));
  return reply;
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

absl::StatusOr<AcquireReply> Coordinator::Acquire(const AcquireRequest& request, absl::Time now) {
  RECON_ASSIGN_OR_RETURN(const WorkerId worker, CheckIdentity(request.identity(), now));
  AcquireReply reply;
  reply.set_phase(phase());
  if (!HasValues()) {
    // Only of a new job: a server that is away has some, and comes back with them. Those of --from-snapshot
    // are being read.
    const bool none_anywhere = initial_ == nullptr && !started_ &&
                               ports_.snapshots->status().generation() == 0 &&
                               (ports_.others == nullptr || ports_.others->state().live);
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
  const WorkerProgress& progress = membership_.Find(worker)->progress;
  const uint32_t splits =
      LeaseSplits(progress.samples_per_second(), job_.split_samples(), target, queue_->free_splits(),
                  membership_.alive(), LeaseShareOf(progress.device_status()).share);
  const std::optional<Task> task = queue_->Next(splits);
  if (!task) {
    // Nothing to do until somebody fails: nobody shall wait for this worker's next step.
    ports_.steps->Deactivate(worker);
    FinishIfDone(now);
    reply.set_phase(phase());
    return reply;
  }
  // Of several servers each knows of some pushes only, and this one hears late of the others'.
  const std::optional<uint64_t> pushes =
      ports_.others == nullptr ? std::optional<uint64_t>(ports_.steps->PushesOf(worker)) : std::nullopt;
  *reply.mutable_lease() = ToLease(*task, leases_.Grant(*task, worker, now, pushes));
  progress_.Excuse(worker, now);
  reply.set_start_step(task->kind == LEASE_TRAIN ? TakePart(worker, request.next_step(), /*resumes=*/false)
                                                 : request.next_step());
  reply.set_push_batches(PushBatchesOf(worker));
  return reply;
}

absl::StatusOr<CompleteReply> Coordinator::Complete(const CompleteRequest& request, const Moment& at) {
  RECON_ASSIGN_OR_RETURN(const WorkerId worker, CheckIdentity(request.identity(), at.now));
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
  if (held.kind == LEASE_TRAIN && request.without_push()) {
    splits_without_push_.Increment();
  } else if (held.kind == LEASE_TRAIN && !leases_.PushedFor(lease, ports_.steps->PushesOf(worker))) {
    // It is in no parameters.
    if (const auto rest = leases_.Take(lease, worker)) queue_->Return(*rest);
    return absl::AbortedError(absl::StrCat("nothing was pushed since lease ", request.lease(),
                                           " was granted: its samples are done again"));
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
  completion.set_unix_ms(absl::ToUnixMillis(at.wall));
  if (task.kind == LEASE_EVAL) {
    if (request.eval().samples() != task.end - task.begin ||
        request.eval().correct() > request.eval().samples()) {
      return absl::InvalidArgumentError(absl::StrCat("evaluation of ", request.eval().samples(), " samples, ",
                                                     request.eval().correct(), " correct; the lease has ",
                                                     task.end - task.begin));
    }
    RECON_RETURN_IF_ERROR(CheckMetrics(request.eval()));
    *completion.mutable_eval() = request.eval();
  }
  // Durable before it is acknowledged.
  const absl::Status saved = ports_.journal->SaveCompletion(completion);
  if (absl::IsAlreadyExists(saved)) {
    LogError("{}", saved.message());
    leases_.TakeFirst(lease, worker, task);
    queue_->Complete(task, completion.eval());  // Or everybody would wait for it.
    if (const auto rest = leases_.Take(lease, worker)) queue_->Return(*rest);
    return absl::AbortedError(saved.message());
  }
  if (!saved.ok()) return saved;  // It may try again.
  leases_.TakeFirst(lease, worker, task);
  queue_->Complete(task, completion.eval());
  NoteCompleted(completion);
  if (task.kind == LEASE_EVAL) {
    const size_t evaluated = evaluations_.size();
    NoteEvaluation(task.data_epoch, completion.unix_ms());
    if (evaluations_.size() > evaluated) KeepIfBest();
  }
  FinishIfDone(at.now);
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
  std::string others;
  for (const MetricSum& metric : result->metrics()) {
    const double value = metric.sum() / metric.weight();
    if (metric.name() == "accuracy") {
      entry.set_accuracy(value);
      entry.set_samples(static_cast<uint64_t>(std::llround(metric.weight())));
    } else if (metric.name() == "loss") {
      entry.set_loss(value);
      entry.set_samples(static_cast<uint64_t>(std::llround(metric.weight())));
    } else {
      (*entry.mutable_metrics())[metric.name()] = value;
      absl::StrAppend(&others, ", ", metric.name(), " ", absl::StrFormat("%.4g", value));
    }
  }
  LogInfo("data epoch {} of {}: test accuracy {:.4f}, loss {:.4f}{}", data_epochs, job_.data_epochs(),
          entry.accuracy(), entry.loss(), others);
  evaluations_.push_back(entry);
  if (!std::isfinite(entry.loss())) {
    divergence_.Note(
        absl::StrCat("the loss of the test data is ", entry.loss(), " after data epoch ", data_epochs),
        absl::FromUnixMillis(unix_ms));
  }
}

// Whoever keeps the best snapshot needs one of these parameters. The job's last one comes anyway.
void Coordinator::KeepIfBest() {
  if (options_.keep_best == BestBy::kNone || queue_->finished()) return;
  const auto evaluation = [](const EvalEntry& entry) { return Evaluation{entry.accuracy(), entry.loss()}; };
  const Evaluation last = evaluation(evaluations_.back());
  for (size_t i = 0; i + 1 < evaluations_.size(); ++i) {
    if (!Better(options_.keep_best, last, evaluation(evaluations_[i]))) return;
  }
  ports_.snapshots->TakeInBackground("best");
}

void Coordinator::ReturnTasks(const std::vector<Task>& tasks) {
  for (const Task& task : tasks) queue_->Return(task);
}

void Coordinator::WatchProgress(absl::Time now) {
  watch_at_ = now + kWatchInterval;
  for (const WorkerId worker : leases_.Holders()) {
    if (phase() != PHASE_RUNNING) progress_.Excuse(worker, now);
    if (progress_.Late(worker, now) && ports_.steps->active(worker) && MayJoinLater(worker)) {
      LogWarn(
          "worker {} was given work {} ago and has computed nothing: the others go on without it until it "
          "has",
          membership_.Find(worker)->name, absl::FormatDuration(absl::Milliseconds(job_.lease_duration_ms())));
      job_.bound() == 0 ? ports_.steps->Park(worker) : ports_.steps->Deactivate(worker);
    }
    const bool others_wait = job_.bound() >= 0 && membership_.Find(worker)->computes;
    if (!progress_.StandsStill(worker, others_wait, now)) continue;
    const std::vector<Task> tasks = leases_.TakeAllOf(worker);
    ReturnTasks(tasks);
    ports_.steps->Deactivate(worker);
    LogWarn("worker {} is alive, but has computed nothing for {}: {} leases taken back",
            membership_.Find(worker)->name, absl::FormatDuration(progress_.Patience(worker, others_wait)),
            tasks.size());
  }
}

}  // namespace recon
