// Of Coordinator: who works on what.

#include <algorithm>
#include <cmath>
#include <optional>
#include <string>

#include "absl/strings/str_cat.h"
#include "common/base/limits.h"
#include "common/base/log.h"
#include "common/base/status_macros.h"
#include "server/control/coordinator.h"
#include "server/control/registration.h"
#include "server/scheduler/device_share.h"
#include "server/scheduler/lease_size.h"

namespace recon {
namespace {

// Between two looks at who stands still.
constexpr absl::Duration kWatchInterval = absl::Milliseconds(200);

// What is made durable of a split that a worker has completed.
Completion CompletionOf(const Task& task, const CompleteRequest& request, const std::string& worker_name,
                        absl::Time wall) {
  Completion completion;
  completion.set_kind(task.kind);
  completion.set_data_epoch(task.data_epoch);
  completion.set_split(task.split.value());
  completion.set_begin(task.begin);
  completion.set_end(task.end);
  completion.set_worker(worker_name);
  completion.set_incarnation(request.identity().incarnation());
  completion.set_unix_ms(absl::ToUnixMillis(wall));
  if (task.kind == LEASE_EVAL) *completion.mutable_eval() = request.eval();
  return completion;
}

// How many batches a worker makes of a lease of training data: none goes beyond its split.
uint64_t BatchesOf(const Lease& lease, const JobConfig& job) {
  const uint64_t split = std::max<uint32_t>(1, job.split_samples());
  const uint64_t batch = std::max<uint32_t>(1, job.batch_samples());
  const uint64_t samples = lease.end() - lease.begin();
  const auto batches = [batch](uint64_t count) { return (count + batch - 1) / batch; };
  return samples / split * batches(split) + batches(samples % split);
}

}  // namespace

void Coordinator::AdoptLeases(const RegisterRequest& request, WorkerId worker, absl::Time now,
                              RegisterReply* reply) {
  // What was pushed for those of another history went with a rollback. And nobody had work before there was a
  // snapshot: what counted then would be of a job that has no parameters after a restart.
  const bool may_hold = request.history() == job_.history() && parameters_.HasValues() && parameters_.saved();
  const auto& held = (may_hold ? request : RegisterRequest::default_instance()).held();
  for (Lease& lease : work_.AdoptAll(held, worker, now)) *reply->add_adopted() = std::move(lease);
}

bool Coordinator::MayJoinLater(WorkerId worker) const {
  // Of parts of the parameters that are pushed in turn none can be sent again in another step.
  const bool in_parts = job_.local().fragments() > 1 || !job_.sync_periods().empty();
  // Where workers have the optimizer, who has come has the state, and computes at once.
  if (job_.bound() < 0 || in_parts || job_.means()) return false;
  if (membership_.Find(worker)->computes) return false;
  return membership_.AnyComputes();
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
  RECON_RETURN_IF_ERROR(CheckNextStep(request.next_step()));
  if (job_.bound() != 0 || !work_.HeldBy(worker).trains) {
    return absl::AbortedError("the worker holds no lease of training data: its push counts no more");
  }
  membership_.Find(worker)->computes = true;
  progress_.Excuse(worker, now);
  RejoinReply reply;
  reply.set_step(ports_.steps->Activate(worker, request.next_step(), /*resumes=*/false));
  return reply;
}

absl::StatusOr<AcquireReply> Coordinator::Acquire(const AcquireRequest& request, absl::Time now) {
  RECON_ASSIGN_OR_RETURN(const WorkerId worker, CheckIdentity(request.identity(), now));
  AcquireReply reply;
  reply.set_phase(phase());
  RECON_RETURN_IF_ERROR(NoteState(worker, request.state()));
  TellOfState(worker, now, reply.mutable_state());
  if (!parameters_.HasValues()) {
    if (parameters_.NeedsWorkersValues(lifecycle_.started())) {
      reply.set_needs_initial_values(parameters_.AskWorker(worker, membership_, cluster_epoch_));
    }
    return reply;
  }
  // It has nothing to compute with yet.
  if (job_.means() && request.state().has_waits_for()) return reply;
  StartIfReady();
  reply.set_phase(phase());
  if (phase() != PHASE_RUNNING || !lifecycle_.MayGrant(now)) return reply;
  RECON_RETURN_IF_ERROR(CheckNextStep(request.next_step()));
  if (work_.HeldBy(worker).leases >= limits::kLeasesPerWorkerMax) {
    return absl::ResourceExhaustedError(
        absl::StrCat("the worker holds ", limits::kLeasesPerWorkerMax, " leases"));
  }
  const std::optional<Lease> lease = GrantTo(worker, now);
  if (!lease) {
    // Nothing to do until somebody fails: nobody shall wait for this worker's next step, unless it asked
    // ahead. Where workers have the optimizer it holds leases until a state that has them is saved.
    const WorkerStateReport& state = request.state();
    const bool computed = job_.means() && state.next() > 0 && state.through() < state.next();
    if (computed || !work_.HeldBy(worker).trains) ports_.steps->Deactivate(worker);
    FinishIfDone(now);
    reply.set_phase(phase());
    if (job_.means() && work_.all_given(work_.data_epoch())) {
      states_.NoteNothingLeft(worker, work_.data_epoch());
      TellOfState(worker, now, reply.mutable_state());
    }
    return reply;
  }
  *reply.mutable_lease() = *lease;
  if (lease->kind() == LEASE_TRAIN) {
    states_.NotePass(lease->data_epoch(), work_.begun(lease->data_epoch()), ports_.steps->frontier());
    states_.NoteGranted(worker, BatchesOf(*lease, job_));
  }
  progress_.Excuse(worker, now);
  reply.set_start_step(lease->kind() == LEASE_TRAIN ? TakePart(worker, request.next_step(), /*resumes=*/false)
                                                    : request.next_step());
  reply.set_push_batches(PushBatchesOf(worker));
  return reply;
}

std::optional<Lease> Coordinator::GrantTo(WorkerId worker, absl::Time now) {
  // What a synchronous step is made of must not hang on how fast somebody was: two runs end in equal bits.
  const absl::Duration target = job_.bound() == 0 ? absl::ZeroDuration() : options_.lease_target;
  const WorkerProgress& progress = membership_.Find(worker)->progress;
  const uint32_t splits =
      LeaseSplits(progress.samples_per_second(), job_.split_samples(), target, work_.free_splits(),
                  membership_.alive(), LeaseShareOf(progress.device_status()).share);
  // Of several servers each knows of some pushes only, and this one hears late of the others'.
  const std::optional<uint64_t> pushes =
      ports_.others == nullptr ? std::optional<uint64_t>(ports_.steps->PushesOf(worker)) : std::nullopt;
  return work_.Grant(worker, splits, now, pushes);
}

absl::StatusOr<CompleteReply> Coordinator::Complete(const CompleteRequest& request, const Moment& at) {
  RECON_ASSIGN_OR_RETURN(const WorkerId worker, CheckIdentity(request.identity(), at.now));
  const LeaseId lease(request.lease());
  if (request.abandon()) {
    RECON_RETURN_IF_ERROR(work_.GiveBack(lease, worker));
    return CompleteReply();
  }
  RECON_ASSIGN_OR_RETURN(const std::optional<Task> task,
                         work_.NextOf(lease, worker, SplitId(request.split())));
  if (!task) return CompleteReply();
  if (task->kind == LEASE_TRAIN && request.without_push()) {
    metrics_.NoteSplitWithoutPush();
  } else if (task->kind == LEASE_TRAIN) {
    RECON_RETURN_IF_ERROR(work_.CheckPushed(lease, worker, ports_.steps->PushesOf(worker)));
  } else {
    RECON_RETURN_IF_ERROR(CheckEvaluation(request.eval(), task->end - task->begin));
  }
  const Completion completion = CompletionOf(*task, request, membership_.Find(worker)->name, at.wall);
  // Durable before it is acknowledged.
  const absl::Status saved = ports_.journal->SaveCompletion(completion);
  if (absl::IsAlreadyExists(saved)) {
    LogError("{}", saved.message());
    work_.NoteDoneBefore(lease, worker, completion);
    return absl::AbortedError(saved.message());
  }
  if (!saved.ok()) return saved;  // It may try again.
  work_.Complete(lease, worker, completion);
  if (task->kind == LEASE_EVAL && NoteEvaluation(task->data_epoch, completion.unix_ms())) KeepIfBest();
  FinishIfDone(at.now);
  return CompleteReply();
}

bool Coordinator::NoteEvaluation(uint32_t data_epochs, int64_t unix_ms) {
  const std::optional<EvalResult> result = work_.Evaluation(data_epochs);
  if (!result || result->samples() == 0) return false;
  const EvalEntry& entry = evaluations_.Add(data_epochs, *result, unix_ms);
  if (!std::isfinite(entry.loss())) {
    divergence_.Note(
        absl::StrCat("the loss of the test data is ", entry.loss(), " after data epoch ", data_epochs),
        absl::FromUnixMillis(unix_ms));
  }
  return true;
}

void Coordinator::KeepIfBest() {
  // The job's last snapshot comes anyway.
  if (options_.keep_best == BestBy::kNone || work_.finished()) return;
  if (evaluations_.LastIsBest(options_.keep_best)) ports_.snapshots->TakeInBackground("best");
}

void Coordinator::WatchProgress(absl::Time now) {
  watch_at_ = now + kWatchInterval;
  for (const WorkerId worker : work_.Holders()) {
    if (!trains()) progress_.Excuse(worker, now);
    if (progress_.Late(worker, now) && ports_.steps->active(worker) && MayJoinLater(worker)) {
      LogWarn(
          "worker {} was given work {} ago and has computed nothing: the others go on without it until it "
          "has",
          membership_.Find(worker)->name, absl::FormatDuration(absl::Milliseconds(job_.lease_duration_ms())));
      job_.bound() == 0 ? ports_.steps->Park(worker) : ports_.steps->Deactivate(worker);
    }
    const bool others_wait = job_.bound() >= 0 && membership_.Find(worker)->computes;
    if (!progress_.StandsStill(worker, others_wait, now)) continue;
    const size_t leases = work_.TakeBackAllOf(worker);
    ports_.steps->Deactivate(worker);
    LogWarn("worker {} is alive, but has computed nothing for {}: {} leases taken back",
            membership_.Find(worker)->name, absl::FormatDuration(progress_.Patience(worker, others_wait)),
            leases);
  }
}

}  // namespace recon
