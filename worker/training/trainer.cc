#include "worker/training/trainer.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "common/base/backoff.h"
#include "common/base/check.h"
#include "common/base/clock.h"
#include "common/base/data_epoch.h"
#include "common/base/limits.h"
#include "common/base/log.h"
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
constexpr double kUsualAtMost = 3;
// Between two looks whether the job has been rolled back.
constexpr absl::Duration kRollbackPoll = absl::Milliseconds(50);
// A batch that usually takes longer is pushed when it is whole: a quarter of kReplyWaitMax.
constexpr absl::Duration kPushedAsItComesMax = absl::Milliseconds(2500);

}  // namespace

struct Trainer::Split {
  Session::HeldLeasePtr lease;
  uint32_t number = 0;  // Of the lease's splits, from 0.
  std::atomic<int> pushes_open{0};
  std::atomic<bool> dropped{false};
  bool submitted = false;  // All of its batches.
  bool pushed = false;     // Some of them: a push has begun.
};

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
    for (const SplitPtr& split : open_) split->dropped = true;
    RECON_RETURN_IF_ERROR(PullReplica());
  }
  if (round_) {
    for (const SplitPtr& split : *round_->splits) split->dropped = true;
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
  while (session_->diverged() && !stop_.load() && session_->fatal().ok()) absl::SleepFor(kRollbackPoll);
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
    if (synchronous() || open_.size() >= limits::kOpenSplitsMax) RECON_RETURN_IF_ERROR(WaitUntilBelow(1));
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

Trainer::SplitPtr Trainer::OpenSplit(const Session::HeldLeasePtr& lease, uint32_t number) {
  auto split = std::make_shared<Split>();
  split->lease = lease;
  split->number = number;
  open_.push_back(split);
  return split;
}

bool Trainer::dropped(const SplitPtr& split) const { return split->dropped || session_->lost(split->lease); }

absl::Status Trainer::CloseSplit(const SplitPtr& split) {
  // Its batches are computed again. Gradients that were not due are of other leases, too: they stay.
  if (dropped(split) && (inner_ != nullptr || round_)) ForgetUnpushed();
  // All of its batches were dropped.
  if (round_ && round_->steps == 0) round_.reset();
  if (round_) RECON_RETURN_IF_ERROR(EndRound(/*flush=*/stop_.load()));
  RECON_CHECK(!split->submitted, "a split is closed twice");
  split->submitted = true;
  if (stop_.load()) split->dropped = true;
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
  batch_ = std::move(batch);
  return place;
}

void Trainer::AlsoOf(const SplitPtr& split) {
  RECON_CHECK(batch_ && !batch_->splits->empty());
  if (batch_->splits->back() == split) return;
  batch_->splits->push_back(split);
  if (!pushing()) return;
  ++split->pushes_open;
  split->pushed = true;
}

absl::StatusOr<bool> Trainer::PushAsItComes(const Computed& computed) {
  OpenBatch& batch = *batch_;
  // Replies to what came first are given up after a while.
  const bool slow = absl::Seconds(session_->counters()->batch_seconds.load()) > kPushedAsItComesMax;
  if (round_ || job_->clip_norm() > 0 || policy_->automatic() || slow || batch.push.gradient->host.empty()) {
    return false;
  }
  std::unique_ptr<GradientBuffer> gradient = std::move(batch.push.gradient);
  batch.gradient = absl::MakeSpan(gradient->host);
  RECON_ASSIGN_OR_RETURN(CommPipeline::Push push,
                         NewPush(batch.order_key, computed.samples, /*flush=*/stop_.load()));
  push.gradient = std::move(gradient);
  push.learning_rates = computed.learning_rates;
  RECON_ASSIGN_OR_RETURN(push.step, TakeStep());
  push.progress = batch.progress = std::make_shared<GradientProgress>(layout_);
  Submit(std::move(push), batch.splits, /*steps=*/1);
  return true;
}

void Trainer::EndPush(OpenBatch batch, const Computed& computed) {
  ShareAveraged(batch.gradient);
  policy_->NoteStep(Now() - batch.arrived, computed.took, batch.stall);
  batch.progress->Complete();
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
  if (open_.size() >= limits::kOpenSplitsMax) RECON_RETURN_IF_ERROR(WaitUntilBelow(1));
  return CompleteFinishedSplits();
}

void Trainer::ShareAveraged(absl::Span<float> values) const {
  const uint32_t workers = session_->workers();
  if (synchronous() || workers < 2 || values.empty()) return;
  const float share = 1.0f / static_cast<float>(workers);
  for (const ShardPlacement& shard : layout_->shards()) {
    if (!layout_->averaged(shard.group)) continue;
    for (float& value : values.subspan(shard.offset, shard.size)) value *= share;
  }
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
    for (const SplitPtr& split : *batch_->splits) split->dropped = true;
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
    RECON_ASSIGN_OR_RETURN(CommPipeline::Push push, NewPush(batch.order_key, computed.samples, flush));
    push.gradient = std::move(gradient);
    push.learning_rates = std::move(computed.learning_rates);
    policy_->NoteStep(Now() - batch.arrived, computed.took, batch.stall);
    RECON_ASSIGN_OR_RETURN(push.step, TakeStep());
    TraceComputing(batch, computed_ns, /*pushed=*/true);
    Submit(std::move(push), std::move(batch.splits), /*steps=*/1);
    return absl::OkStatus();
  }
  TraceComputing(batch, computed_ns, /*pushed=*/false);
  if (computed.moved) {
    inner_->MoveTo(scratch_, computed.samples);
  } else if (inner_ != nullptr) {
    inner_->Step(batch.order_key / job_->batch_samples(), scratch_, computed.samples,
                 computed.learning_rates);
  } else {
    sum_.Add(scratch_, computed.samples, replica_->versions(), replica_->cluster_epoch());
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

absl::StatusOr<Trainer::Round> Trainer::BeginRound(uint64_t order_key) {
  Round round;
  round.order_key = order_key;
  round.steps_max = RoundSteps();
  round.arrived = Now();
  scratch_.resize(layout_->params());
  if (inner_ == nullptr) {
    RECON_ASSIGN_OR_RETURN(round.stall, AwaitPlace(depth()));
    return round;
  }
  // It begins where all that was pushed has led; a fragment's push is waited for at the round's end.
  if (!schedule_.partial()) {
    RECON_ASSIGN_OR_RETURN(round.stall, AwaitPlace(1));
  } else if (!inner_begun_) {
    RECON_RETURN_IF_ERROR(AdoptReplies());
  }
  if (!schedule_.partial() || !inner_begun_) {
    inner_->Begin(replica_->view().values, replica_->versions(), replica_->cluster_epoch());
    inner_begun_ = true;
  } else {
    inner_->Follow(replica_->view().values, replica_->versions(), replica_->cluster_epoch());
  }
  return round;
}

void Trainer::ForgetUnpushed() {
  round_.reset();
  sum_.Clear();
  inner_begun_ = false;
}

uint32_t Trainer::RoundSteps() const {
  if (inner_ == nullptr) {
    const bool told = job_->policy().step_samples() > 0 || job_->policy().step_samples_constant();
    const uint32_t batches = told ? session_->push_batches() : 0;
    return batches > 0 ? batches : options_.accumulate;
  }
  const uint32_t told = job_->policy().local_steps_by_speed() ? session_->push_batches() : 0;
  if (told == 0) return schedule_.steps();
  const uint32_t of_fragment = (told + schedule_.fragments() / 2) / schedule_.fragments();
  return std::clamp(of_fragment, 1u, schedule_.steps());
}

absl::Status Trainer::EndRound(bool flush) {
  RECON_CHECK(round_ && round_->steps > 0, "a round ends that has no steps");
  Round round = *std::exchange(round_, std::nullopt);
  if (inner_ != nullptr && schedule_.partial()) {
    // A fragment's push may be on its way there while the one before is on its way back.
    const int under_way = flush ? 1 : std::min(options_.depth, static_cast<int>(schedule_.fragments()));
    RECON_ASSIGN_OR_RETURN(round.stall, AwaitPlace(under_way));
    if (std::any_of(round.splits->begin(), round.splits->end(),
                    [this](const SplitPtr& split) { return dropped(split); })) {
      ForgetUnpushed();
      return absl::OkStatus();
    }
    inner_->Follow(replica_->view().values, replica_->versions(), replica_->cluster_epoch());
  }
  RECON_ASSIGN_OR_RETURN(const uint64_t step, TakeStep());
  std::vector<bool> due;  // All.
  if (!flush) due = schedule_.Due(step);
  GradientSum::Taken taken;
  if (inner_ != nullptr) {
    taken.samples = inner_->TakeMovement(due, absl::MakeSpan(scratch_));
    ShareAveraged(absl::MakeSpan(scratch_));
  } else {
    taken = sum_.Take(due, replica_->cluster_epoch(), absl::MakeSpan(scratch_));
  }
  RECON_ASSIGN_OR_RETURN(CommPipeline::Push push,
                         NewPush(round.order_key, round.samples, flush, std::move(due)));
  push.step = step;
  if (inner_ == nullptr) push.base_versions = std::move(taken.versions);
  push.shard_samples = std::move(taken.samples);
  push.learning_rates = std::move(round.learning_rates);
  RECON_ASSIGN_OR_RETURN(push.gradient, pipeline_.TakeBuffer());
  RECON_RETURN_IF_ERROR(space_->Load(scratch_, push.gradient.get()));
  policy_->NoteStep(Now() - round.arrived, round.compute, round.stall);
  Submit(std::move(push), std::move(round.splits), round.steps);
  return absl::OkStatus();
}

absl::StatusOr<uint64_t> Trainer::TakeStep() {
  while (true) {
    if (const std::optional<uint64_t> step = session_->TakeStep()) return last_step_ = *step;
    AwaitPushes();  // What they bring comes later: the gradient was computed from what there is.
    RECON_RETURN_IF_ERROR(session_->fatal());
  }
}

void Trainer::Submit(CommPipeline::Push push, Splits splits, uint64_t steps) {
  for (const SplitPtr& split : *splits) {
    ++split->pushes_open;
    split->pushed = true;
  }
  push.counts_no_more = [this, splits] {
    return std::any_of(splits->begin(), splits->end(),
                       [this](const SplitPtr& split) { return dropped(split); });
  };
  push.done = [this, splits = std::move(splits), steps, samples = push.samples](bool applied) {
    if (applied) {
      Session::Counters* counters = session_->counters();
      counters->steps += steps;
      counters->samples += samples;
      steps_.Increment(static_cast<double>(steps));
      samples_.Increment(static_cast<double>(samples));
      double none = 0;
      const double now = absl::ToDoubleMilliseconds(ProcessUptime());
      if (counters->reconstruct_ms.compare_exchange_strong(none, now)) {
        LogInfo("first push acknowledged {:.0f} ms after process start", now);
      }
    }
    for (const SplitPtr& split : *splits) {
      if (!applied) split->dropped = true;
      const int before = split->pushes_open.fetch_sub(1);
      RECON_CHECK_GT(before, 0, "a push of a split ends twice");
    }
  };
  pipeline_.Submit(std::move(push));
}

absl::StatusOr<CommPipeline::Push> Trainer::NewPush(uint64_t order_key, uint64_t samples, bool flush,
                                                    std::vector<bool> due) {
  CommPipeline::Push push;
  push.order_key = order_key;
  push.samples = static_cast<uint32_t>(samples);
  push.base_versions = replica_->versions();
  push.base_epoch = replica_->cluster_epoch();
  push.local = inner_ != nullptr;
  push.history = job_->history();
  const double data_epochs = static_cast<double>(order_key) / static_cast<double>(options_.train_samples);
  push.plan = policy_->PlanFor(data_epochs, flush, std::move(due), Now());
  // By what is computed, not by who computes it: two runs with one seed make the same choices.
  uint64_t state = job_->seed() ^ order_key;
  push.plan.seed = SplitMix64(&state);
  return push;
}

absl::Status Trainer::FlushResidual() {
  // Synchronous workers are given a last batch to send it with: a push of its own would be a step.
  const bool moved = inner_ != nullptr && inner_begun_ && inner_->holds();
  const bool held = sum_.holds() || moved;
  if (synchronous() || (session_->counters()->residual_norm == 0 && !held) || !replica_->complete()) {
    return absl::OkStatus();
  }
  RECON_ASSIGN_OR_RETURN(CommPipeline::Push push, NewPush(0, 1, /*flush=*/true));
  RECON_ASSIGN_OR_RETURN(push.gradient, pipeline_.TakeBuffer());
  if (held) {
    if (moved) (void)inner_->TakeMovement(/*due=*/{}, absl::MakeSpan(scratch_));
    if (!moved)
      push.base_versions =
          sum_.Take(/*due=*/{}, replica_->cluster_epoch(), absl::MakeSpan(scratch_)).versions;
    RECON_RETURN_IF_ERROR(space_->Load(scratch_, push.gradient.get()));
  } else {
    RECON_RETURN_IF_ERROR(space_->ZeroGradient(push.gradient.get()));
  }
  RECON_ASSIGN_OR_RETURN(push.step, TakeStep());
  push.done = [](bool) {};
  pipeline_.Submit(std::move(push));
  AwaitPushes();
  return session_->fatal();
}

absl::Status Trainer::CompleteFinishedSplits() {
  const auto finished = [this] {
    return !open_.empty() && open_.front()->submitted && open_.front()->pushes_open == 0;
  };
  if (!finished()) return absl::OkStatus();
  const Pause mark(session_, trace::kCompleting);
  // In their order: it is that of a lease's splits.
  while (finished()) {
    const SplitPtr split = open_.front();
    open_.pop_front();
    if (split->dropped || session_->lost(split->lease)) {
      session_->Abandon(split->lease);
      continue;
    }
    const absl::Status status = session_->CompleteTraining(split->lease, split->number, split->pushed);
    if (absl::IsAborted(status)) {
      LogWarn("a split of data epoch {} was lost: {}",
              ShownDataEpoch(split->lease->task.data_epoch(), /*training=*/true), status.message());
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
  return PullParameters(&pipeline_, replica_);
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
  for (const Frame& reply : replies) RECON_RETURN_IF_ERROR(replica_->Adopt(reply));
  return absl::OkStatus();
}

}  // namespace recon
