#include "worker/training/trainer.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "common/base/backoff.h"
#include "common/base/check.h"
#include "common/base/clock.h"
#include "common/base/data_epoch.h"
#include "common/base/limits.h"
#include "common/base/log.h"
#include "common/base/sleep.h"
#include "common/base/status_macros.h"
#include "common/optim/update_rules.h"
#include "common/trace/span_names.h"
#include "google/protobuf/util/message_differencer.h"
#include "worker/data/dataset.h"

namespace recon {

using google::protobuf::util::MessageDifferencer;

namespace {

// The usual computing time of a batch is the mean of about so many, in which none counts for more than so
// many times it: a hiccup is none of the machine's speed. Nor is a process' first batch.
constexpr double kUsualBatches = 8;
constexpr int kPullTries = 3;
constexpr double kUsualAtMost = 3;
// Between two looks whether the job has been rolled back.
constexpr absl::Duration kRollbackPoll = absl::Milliseconds(50);

// The object of "waiting for"; `why` is one of the spans' names.
const char* WhatIsWaitedFor(absl::string_view why) {
  if (why == trace::kWaitingForPushes) return "the answers to its pushes";
  if (why == trace::kWaitingForWork) return "work";
  if (why == trace::kPulling) return "the parameters";
  if (why == trace::kCompleting) return "the head to complete its splits";
  return why == trace::kWaitingForRollback ? "a rollback" : "a server";
}

}  // namespace

Trainer::Pause::Pause(Session* session, const char* why)
    : counters_(session->counters()),
      outer_(counters_->waits_for.exchange(WhatIsWaitedFor(why))),
      span_(why) {
  ++counters_->waiting;
}

Trainer::Pause::~Pause() {
  --counters_->waiting;
  counters_->waits_for = outer_;
}

Trainer::Trainer(const Options& options, const ParamLayout* layout, GradientSpace* space, CodecPolicy* policy,
                 ParamClient* client, Session* session, Replica* replica, Metrics* metrics)
    : options_(options),
      layout_(layout),
      space_(space),
      policy_(policy),
      session_(session),
      replica_(replica),
      steps_(metrics->Counter("recon_worker_steps_total", "Steps computed")),
      samples_(metrics->Counter("recon_worker_samples_total", "Samples computed")),
      skipped_(metrics->Counter("recon_worker_skipped_batches_total",
                                "Batches without a push, since they did not stay finite with loss scaling")),
      loss_(metrics->Gauge("recon_worker_loss", "Mean loss of the last batch")),
      compute_seconds_(metrics->Histogram("recon_worker_compute_seconds", "Computing time of a step",
                                          {.001, .002, .005, .01, .02, .05, .1, .2, .5, 1, 2, 5})),
      sum_(layout),
      mean_(layout),
      pipeline_(options.depth, layout, space, policy, client, session, metrics) {}

Trainer::~Trainer() {
  if (pushing()) batch_->progress->Abandon();
}

absl::Status Trainer::AdoptJob() {
  AwaitRollback();
  RECON_RETURN_IF_ERROR(session_->fatal());
  if (session_->job() == job_) return absl::OkStatus();
  if (job_ != nullptr) RECON_RETURN_IF_ERROR(WaitUntilBelow(1));
  const std::shared_ptr<const JobConfig> before = std::exchange(job_, session_->job());
  // The server was started anew, say: what is computed already goes on.
  if (before != nullptr && MessageDifferencer::Equals(*before, *job_)) return absl::OkStatus();
  // Gradients are gradients, whatever the bound: what is not pushed yet goes with the next push.
  const bool other_kind = before != nullptr && before->has_local() != job_->has_local();
  const bool rolled_back = before != nullptr && before->history() != job_->history();
  // The parameters there are, and all that was computed from them, are of a history that has ended.
  if (rolled_back) {
    open_.DropAll();
    RECON_RETURN_IF_ERROR(PullReplica());
  }
  if (round_) {
    for (const SplitPtr& split : *round_->splits) split->Drop();
  }
  if (sum_.holds() && other_kind) LogWarn("gradients that were not due yet are lost with the policy");
  if (inner_begun_ && schedule_.partial()) {
    LogWarn("movement of fragments whose turn had not come is lost with the policy");
  }
  if (round_ || other_kind || rolled_back || job_->has_local()) ForgetUnpushed();
  return AdoptPolicy(before.get());
}

absl::Status Trainer::AdoptPolicy(const JobConfig* before) {
  const JobConfig& job = *job_;
  pushed_shards_.clear();
  for (uint32_t i = 0; job.means() && i < layout_->shard_count(); ++i) {
    pushed_shards_.push_back(!HoldsState(*layout_, i));
  }
  const bool rolled_back = before != nullptr && before->history() != job.history();
  RECON_ASSIGN_OR_RETURN(schedule_, PushSchedule::Create(job, *layout_));
  if (before != nullptr && !rolled_back && before->has_local() == job.has_local() &&
      MessageDifferencer::Equals(before->local().rules(), job.local().rules()) &&
      before->clip_norm() == job.clip_norm()) {
    return absl::OkStatus();
  }
  const uint64_t accumulated = uint64_t{options_.accumulate} * job.batch_samples();
  if (options_.accumulate > 1 && !job.has_local() && accumulated > job.split_samples()) {
    LogWarn("--accumulate {}: a lease has {} samples, {} batches at most: pushes are of no more",
            options_.accumulate, job.split_samples(),
            (job.split_samples() + job.batch_samples() - 1) / job.batch_samples());
  }
  inner_ = nullptr;
  inner_begun_ = false;
  if (job.has_local()) {
    RECON_ASSIGN_OR_RETURN(const ApplyRules rules, DecodeRules(job.local().rules()));
    inner_ = std::make_unique<InnerOptimizer>(rules, layout_);
    if (schedule_.fragments() != std::max(1u, job.local().fragments())) {
      LogWarn("--fragments {}: the model has {} shards, they make {} fragments", job.local().fragments(),
              layout_->shard_count(), schedule_.fragments());
    }
  }
  EncoderOptions options = options_.encoder;
  options.clip_norm = job.clip_norm();
  RECON_ASSIGN_OR_RETURN(std::unique_ptr<GradientEncoder> encoder, space_->NewEncoder(options));
  pipeline_.SetEncoder(std::move(encoder));
  if (before == nullptr) return absl::OkStatus();
  LogInfo("the job {}goes on with {}", rolled_back ? "was rolled back, and " : "",
          job.has_local() ? absl::StrCat(job.local().steps(), " local steps") : "gradients");
  if (const double kept = session_->counters()->residual_norm.exchange(0); kept > 0) {
    LogWarn("what was kept back for the {} before is lost, L2 norm {:.3g}", rolled_back ? "state" : "policy",
            kept);
  }
  return absl::OkStatus();
}

void Trainer::AwaitRollback() {
  if (!session_->diverged()) return;
  const Pause mark(session_, trace::kWaitingForRollback);
  while (session_->diverged() && !stop_.load() && session_->fatal().ok()) Sleep(kRollbackPoll);
}

absl::Status Trainer::Begin() {
  RECON_RETURN_IF_ERROR(AdoptJob());
  // Before the first lease: a replacement has its state by the time it has work.
  if (!session_->server_has_values()) return absl::OkStatus();
  const Pause mark(session_, trace::kPulling);
  const auto stopped = [this] { return stop_.load() || !session_->fatal().ok(); };
  return Reconstruct(options_.parameters_from, options_.tls, *layout_, *session_, stopped, &pipeline_,
                     replica_);
}

absl::StatusOr<Trainer::Work> Trainer::NextWork() {
  RECON_RETURN_IF_ERROR(session_->fatal());
  if (batch_) {
    // What the batch is computed from must stay as it is.
    if (!pushing()) AwaitPushes();
  } else {
    RECON_RETURN_IF_ERROR(AdoptJob());
    RECON_RETURN_IF_ERROR(CompleteFinishedSplits());
    // A synchronous step is closed by who takes part in it: no asking for work with a push under way.
    if (synchronous() || open_.full()) RECON_RETURN_IF_ERROR(WaitUntilBelow(1));
  }
  RECON_RETURN_IF_ERROR(CompleteFinishedSplits());
  RECON_ASSIGN_OR_RETURN(const Session::Acquired acquired, Acquire());
  Work work;
  if (acquired.initial_values_wanted) {
    work.kind = Work::Kind::kInitialValues;
  } else if (acquired.phase == PHASE_FINISHED) {
    work.kind = Work::Kind::kFinished;
  } else if (acquired.lease != nullptr) {
    const bool train = acquired.lease->task.kind() == LEASE_TRAIN;
    work.kind = train ? Work::Kind::kTrain : Work::Kind::kEvaluate;
    work.lease = acquired.lease;
  }
  return work;
}

absl::StatusOr<Session::Acquired> Trainer::Acquire() {
  const Pause mark(session_, trace::kWaitingForWork);
  return session_->Acquire();
}

void Trainer::AwaitPushes() {
  const Pause mark(session_, trace::kWaitingForPushes);
  pipeline_.WaitUntilBelow(1);
}

absl::Status Trainer::Finish() {
  DropBatch();
  AwaitPushes();
  if (stop_.load()) RECON_RETURN_IF_ERROR(FlushResidual());
  RECON_RETURN_IF_ERROR(CompleteFinishedSplits());
  return session_->fatal();
}

bool Trainer::dropped(const SplitPtr& split) const {
  return split->dropped() || session_->lost(split->lease());
}

absl::Status Trainer::CloseSplit(const SplitPtr& split) {
  // Its batches are computed again. Gradients that were not due are of other leases, too: they stay.
  if (dropped(split) && (inner_ != nullptr || round_)) ForgetUnpushed();
  // All of its batches were dropped.
  if (round_ && round_->steps == 0) round_.reset();
  if (round_) RECON_RETURN_IF_ERROR(EndRound(/*flush=*/stop_.load()));
  split->Close();
  if (stop_.load()) split->Drop();
  return CompleteFinishedSplits();
}

absl::StatusOr<absl::Duration> Trainer::AwaitPlace(int pushes) {
  const absl::Time arrived = Now();
  RECON_RETURN_IF_ERROR(WaitUntilBelow(session_->must_drain() ? 1 : pushes));
  const absl::Duration stall = Now() - arrived;
  RECON_RETURN_IF_ERROR(session_->fatal());
  RECON_RETURN_IF_ERROR(AdoptReplies());
  RECON_RETURN_IF_ERROR(CompleteFinishedSplits());
  return stall;
}

absl::StatusOr<std::optional<Trainer::Place>> Trainer::BeginBatch(uint64_t order_key, const SplitPtr& split) {
  if (!replica_->complete()) RECON_RETURN_IF_ERROR(PullReplica());
  RECON_RETURN_IF_ERROR(AdoptJob());
  if (dropped(split)) return std::nullopt;
  RECON_CHECK(!batch_, "a batch begins before the one before has ended");
  OpenBatch batch;
  batch.order_key = order_key;
  batch.arrived = Now();
  batch.splits->push_back(split);
  Place place;
  if (in_rounds()) {
    if (!round_) {
      RECON_ASSIGN_OR_RETURN(round_, BeginRound(order_key));
    }
    // No reply is adopted before the round's end: all of it is computed from the versions that its push
    // names.
    place.parameters = inner_ != nullptr ? inner_->view() : replica_->view();
    place.values = absl::MakeSpan(scratch_);
  } else {
    RECON_ASSIGN_OR_RETURN(batch.stall, AwaitPlace(depth()));
    RECON_ASSIGN_OR_RETURN(batch.push.gradient, pipeline_.TakeBuffer());
    place.parameters = replica_->view();
    place.gradient = batch.push.gradient.get();
  }
  if (trace::On()) batch.traced_ns = MonotonicNanos();
  ++session_->counters()->batches_begun;
  batch_ = std::move(batch);
  return place;
}

void Trainer::AlsoOf(const SplitPtr& split) {
  RECON_CHECK(batch_ && !batch_->splits->empty());
  if (batch_->splits->back() == split) return;
  batch_->splits->push_back(split);
  if (pushing()) split->BeginPush();
}

void Trainer::DropBatch() {
  if (pushing()) {
    // Synchronous workers wait for the whole of a push that has begun.
    batch_->progress->ZeroRest(batch_->gradient);
    batch_->progress->Complete();
  }
  if (batch_ && batch_->push.gradient != nullptr) pipeline_.ReturnBuffer(std::move(batch_->push.gradient));
  batch_.reset();
}

void Trainer::SkipBatch() {
  ++session_->counters()->batches;  // It has computed: it does not stand still.
  ++session_->counters()->skipped_batches;
  skipped_.Increment();
  DropBatch();
}

void Trainer::NoteBatchSize(uint32_t samples, uint32_t piece_samples) {
  session_->counters()->batch_samples = samples;
  session_->counters()->micro_batch_samples = piece_samples;
}

absl::Status Trainer::MakeRoomForSplit() {
  RECON_RETURN_IF_ERROR(session_->fatal());
  RECON_RETURN_IF_ERROR(AdoptJob());
  if (open_.full()) RECON_RETURN_IF_ERROR(WaitUntilBelow(1));
  return CompleteFinishedSplits();
}

absl::Status Trainer::Account(const Computed& computed) {
  compute_seconds_.Observe(absl::ToDoubleSeconds(computed.took));
  const bool first = session_->counters()->batches++ == 0;
  std::atomic<double>& usual = session_->counters()->batch_seconds;
  const double seconds = absl::ToDoubleSeconds(computed.took);
  if (usual > 0) {
    usual = usual + (std::min(seconds, kUsualAtMost * usual) - usual) / kUsualBatches;
  } else if (!first) {
    usual = seconds;
  }
  if (!computed.diverged.empty()) return absl::OutOfRangeError(computed.diverged);
  if (!computed.loss) return absl::OkStatus();
  if (!std::isfinite(*computed.loss)) {
    return absl::OutOfRangeError(
        absl::StrCat("the loss is ", *computed.loss, "; is the learning rate too high?"));
  }
  loss_.Set(*computed.loss);
  session_->counters()->last_loss = *computed.loss;
  return absl::OkStatus();
}

void Trainer::TraceComputing(const OpenBatch& batch, int64_t end_ns, bool pushed) const {
  if (batch.traced_ns == 0) return;
  const trace::About about = pushed ? trace::About::Push(session_->worker(), last_step_) : trace::About();
  trace::Record(trace::kComputing, batch.traced_ns, end_ns, about);
}

absl::Status Trainer::EndBatch(Computed computed, bool flush) {
  const int64_t computed_ns = trace::On() ? MonotonicNanos() : 0;
  const absl::Status accounted = Account(computed);
  if (absl::IsOutOfRange(accounted) && job_->rolls_back()) {
    for (const SplitPtr& split : *batch_->splits) split->Drop();
    if (pushing()) std::exchange(batch_, std::nullopt)->progress->Abandon();
    DropBatch();
    session_->NoteDivergence(std::string(accounted.message()));
    return AdoptJob();
  }
  RECON_RETURN_IF_ERROR(accounted);
  if (computed.moved && inner_ == nullptr) {
    return absl::FailedPreconditionError(
        "the job's policy has no local steps, and the optimizer is one that the server does not compute: set "
        "--sync local:H or diloco:H");
  }
  OpenBatch batch = *std::exchange(batch_, std::nullopt);
  if (batch.progress != nullptr) {
    TraceComputing(batch, computed_ns, /*pushed=*/true);
    EndPush(std::move(batch), computed);
    return absl::OkStatus();
  }
  if (!round_) {
    std::unique_ptr<GradientBuffer> gradient = std::move(batch.push.gradient);
    ShareAveraged(absl::MakeSpan(gradient->host));
    RECON_ASSIGN_OR_RETURN(CommPipeline::Push push,
                           NewPush(batch.order_key, computed.samples, flush, pushed_shards_));
    push.gradient = std::move(gradient);
    push.weight = static_cast<uint32_t>(computed.weight);
    push.learning_rates = std::move(computed.learning_rates);
    policy_->NoteStep(Now() - batch.arrived, computed.took, batch.stall);
    RECON_ASSIGN_OR_RETURN(push.step, TakeStep());
    TraceComputing(batch, computed_ns, /*pushed=*/true);
    Submit(std::move(push), std::move(batch.splits), /*steps=*/1);
    return absl::OkStatus();
  }
  TraceComputing(batch, computed_ns, /*pushed=*/false);
  const uint64_t weight = computed.weight > 0 ? computed.weight : computed.samples;
  if (computed.moved) {
    inner_->MoveTo(scratch_, weight);
  } else if (inner_ != nullptr) {
    inner_->Step(batch.order_key / job_->batch_samples(), scratch_, weight, computed.learning_rates);
  } else {
    sum_.Add(scratch_, weight, replica_->versions(), replica_->cluster_epoch());
    round_->learning_rates = std::move(computed.learning_rates);
  }
  std::vector<SplitPtr>& splits = *round_->splits;
  for (SplitPtr& split : *batch.splits) {
    if (splits.empty() || splits.back() != split) splits.push_back(std::move(split));
  }
  round_->compute += computed.took;
  round_->samples += computed.samples;
  ++round_->steps;
  return flush || round_->steps == round_->steps_max ? EndRound(flush) : absl::OkStatus();
}

absl::Status Trainer::CompleteFinishedSplits() {
  if (!open_.any_finished()) return absl::OkStatus();
  const Pause mark(session_, trace::kCompleting);
  while (const SplitPtr split = open_.TakeFinished()) {
    if (dropped(split)) {
      session_->Abandon(split->lease());
      continue;
    }
    const absl::Status status = session_->CompleteTraining(split->lease(), split->number(), split->pushed());
    if (absl::IsAborted(status)) {
      LogWarn("a split of data epoch {} was lost: {}",
              ShownDataEpoch(split->lease()->task.data_epoch(), /*training=*/true), status.message());
    } else if (!status.ok()) {
      return status;
    }
  }
  return absl::OkStatus();
}

absl::StatusOr<ParameterView> Trainer::BeginEvaluation() {
  // With what the server has now, not with what this worker last computed from.
  RECON_RETURN_IF_ERROR(WaitUntilBelow(1));
  RECON_ASSIGN_OR_RETURN(const ParameterView parameters, Pull());
  evaluation_traced_ns_ = trace::On() ? MonotonicNanos() : 0;
  return parameters;
}

absl::Status Trainer::EndEvaluation(const Session::HeldLeasePtr& lease, const EvalResult& result) {
  if (evaluation_traced_ns_ != 0)
    trace::Record(trace::kEvaluating, evaluation_traced_ns_, MonotonicNanos(), {});
  const absl::Status status = session_->CompleteEvaluation(lease, result);
  return absl::IsAborted(status) ? absl::OkStatus() : status;
}

absl::StatusOr<ParameterView> Trainer::Pull() {
  RECON_RETURN_IF_ERROR(PullReplica());
  return replica_->view();
}

absl::Status Trainer::SendInitialValues(absl::Span<const float> values) {
  const absl::Span<float> initial = replica_->TakeInitialValues();
  std::copy(values.begin(), values.end(), initial.begin());
  const Session::Standing standing = session_->standing();
  const absl::Status status = pipeline_.SendInitialValues({values.begin(), values.end()});
  // Whatever happened, the next question for work tells whether the server still wants them.
  Backoff backoff;
  return status.ok() ? status : session_->Recover(status, standing, &backoff);
}

absl::Status Trainer::PullReplica() {
  const Pause mark(session_, trace::kPulling);
  // What comes of an epoch that is over is not taken: once more then.
  for (int tries = 0; tries < kPullTries; ++tries) {
    RECON_RETURN_IF_ERROR(PullParameters(&pipeline_, replica_));
    if (replica_->complete()) return absl::OkStatus();
  }
  return absl::InvalidArgumentError(
      "the servers' answers to a pull of everything leave shards without values");
}

absl::Status Trainer::WaitUntilBelow(int pushes) {
  const Pause mark(session_, trace::kWaitingForPushes);
  while (!pipeline_.WaitUntilBelowOrReplies(pushes)) RECON_RETURN_IF_ERROR(Adopt(pipeline_.TakeReplies()));
  return absl::OkStatus();
}

absl::Status Trainer::AdoptReplies() {
  RECON_RETURN_IF_ERROR(Adopt(pipeline_.TakeReplies()));
  return replica_->complete() ? absl::OkStatus() : PullReplica();
}

absl::Status Trainer::Adopt(const std::vector<Frame>& replies) {
  for (const Frame& reply : replies) {
    if (!job_->means()) {
      RECON_RETURN_IF_ERROR(replica_->Adopt(reply));
    } else if (reply.header.step == mean_.step()) {
      RECON_RETURN_IF_ERROR(mean_.Take(reply));
    }
  }
  return absl::OkStatus();
}

}  // namespace recon
