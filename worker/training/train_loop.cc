#include "worker/training/train_loop.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "common/base/backoff.h"
#include "common/base/clock.h"
#include "common/base/data_epoch.h"
#include "common/base/limits.h"
#include "common/base/log.h"
#include "common/base/status_macros.h"
#include "common/optim/update_rules.h"
#include "google/protobuf/util/message_differencer.h"
#include "worker/comm/snapshot_source.h"
#include "worker/data/prefetcher.h"

namespace recon {

using google::protobuf::util::MessageDifferencer;

namespace {

// Between two questions for work when there is none.
constexpr absl::Duration kIdlePoll = absl::Milliseconds(50);

// The usual computing time of a batch is the mean of about so many, in which none counts for more than so
// many times it: a hiccup is none of the machine's speed. Nor is a process' first batch.
constexpr double kUsualBatches = 8;
constexpr double kUsualAtMost = 3;

// While it lives, heartbeats say that nothing is computed for a reason.
class WaitingMark {
 public:
  explicit WaitingMark(Session* session) : waiting_(&session->counters()->waiting) { ++*waiting_; }
  ~WaitingMark() { --*waiting_; }
  WaitingMark(const WaitingMark&) = delete;
  WaitingMark& operator=(const WaitingMark&) = delete;

 private:
  std::atomic<int>* waiting_;
};

}  // namespace

// A split whose pushes are under way: done when all are acknowledged.
struct TrainLoop::OpenSplit {
  Session::HeldLeasePtr lease;
  uint32_t number = 0;  // Of the lease's splits, from 0.
  std::atomic<int> pushes_open{0};
  std::atomic<bool> dropped{false};
  bool submitted = false;  // All of its batches.
};

TrainLoop::TrainLoop(const Options& options, const ParamLayout* layout, ModelBackend* backend,
                     CodecPolicy* policy, const TrainAndTest* data, ParamClient* client, Session* session,
                     Replica* replica, Metrics* metrics)
    : options_(options),
      layout_(layout),
      backend_(backend),
      policy_(policy),
      data_(data),
      session_(session),
      replica_(replica),
      steps_(metrics->Counter("recon_worker_steps_total", "Steps computed")),
      samples_(metrics->Counter("recon_worker_samples_total", "Samples computed")),
      loss_(metrics->Gauge("recon_worker_loss", "Mean loss of the last batch")),
      compute_seconds_(metrics->Histogram("recon_worker_compute_seconds", "Computing time of a step",
                                          {.001, .002, .005, .01, .02, .05, .1, .2, .5, 1, 2, 5})),
      sum_(layout),
      reading_("reading"),
      pipeline_(options.depth, layout, backend, policy, client, session, metrics) {}

TrainLoop::~TrainLoop() = default;

absl::Status TrainLoop::AdoptJob() {
  if (session_->job() == job_) return absl::OkStatus();
  if (job_ != nullptr) RECON_RETURN_IF_ERROR(WaitUntilBelow(1));
  const std::shared_ptr<const JobConfig> before = std::exchange(job_, session_->job());
  const JobConfig& job = *job_;
  // The server was started anew, say: what is computed already goes on.
  if (before != nullptr && MessageDifferencer::Equals(*before, job)) return absl::OkStatus();
  // Gradients are gradients, whatever the bound: what is not pushed yet goes with the next push.
  const bool other_kind = before != nullptr && before->has_local() != job.has_local();
  if (round_) round_->split->dropped = true;
  if (sum_.holds() && other_kind) LogWarn("gradients that were not due yet are lost with the policy");
  if (inner_begun_ && schedule_.partial()) {
    LogWarn("movement of fragments whose turn had not come is lost with the policy");
  }
  if (round_ || other_kind || job.has_local()) ForgetUnpushed();
  RECON_ASSIGN_OR_RETURN(schedule_, PushSchedule::Create(job, *layout_));
  if (before != nullptr && before->has_local() == job.has_local() &&
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
  RECON_ASSIGN_OR_RETURN(std::unique_ptr<GradientEncoder> encoder, backend_->NewEncoder(options));
  pipeline_.SetEncoder(std::move(encoder));
  if (before == nullptr) return absl::OkStatus();
  LogInfo("the job goes on with {}",
          job.has_local() ? absl::StrCat(job.local().steps(), " local steps") : "gradients");
  if (const double kept = session_->counters()->residual_norm.exchange(0); kept > 0) {
    LogWarn("what was kept back for the policy before is lost, L2 norm {:.3g}", kept);
  }
  return absl::OkStatus();
}

absl::Status TrainLoop::Run() {
  RECON_RETURN_IF_ERROR(AdoptJob());
  // Before the first lease: a replacement has its state by the time it has work.
  if (session_->server_has_values()) {
    const WaitingMark mark(session_);
    const auto stopped = [this] { return stop_.load() || !session_->fatal().ok(); };
    RECON_RETURN_IF_ERROR(Reconstruct(options_.parameters_from, options_.tls, *layout_, *session_, stopped,
                                      &pipeline_, replica_));
  }
  while (!stop_.load()) {
    RECON_RETURN_IF_ERROR(session_->fatal());
    RECON_RETURN_IF_ERROR(AdoptJob());
    RECON_RETURN_IF_ERROR(CompleteFinishedSplits());
    // A synchronous step is closed by who takes part in it: no asking for work with a push under way.
    if (synchronous() || open_.size() >= limits::kOpenSplitsMax) {
      RECON_RETURN_IF_ERROR(WaitUntilBelow(1));
    }
    RECON_RETURN_IF_ERROR(CompleteFinishedSplits());
    RECON_ASSIGN_OR_RETURN(const Session::Acquired acquired, Acquire());
    if (acquired.initial_values_wanted) {
      RECON_RETURN_IF_ERROR(SendInitialValues());
    } else if (acquired.phase == PHASE_FINISHED) {
      break;
    } else if (acquired.lease == nullptr) {
      // With splits whose pushes are under way, perhaps.
      const WaitingMark mark(session_);
      absl::SleepFor(kIdlePoll);
    } else if (acquired.lease->task.kind() == LEASE_TRAIN) {
      RECON_RETURN_IF_ERROR(TrainLease(acquired.lease));
    } else {
      RECON_RETURN_IF_ERROR(EvaluateSplit(acquired.lease));
    }
  }
  AwaitPushes();
  if (stop_.load()) RECON_RETURN_IF_ERROR(FlushResidual());
  RECON_RETURN_IF_ERROR(CompleteFinishedSplits());
  return session_->fatal();
}

absl::StatusOr<Session::Acquired> TrainLoop::Acquire() {
  const WaitingMark mark(session_);
  return session_->Acquire();
}

void TrainLoop::AwaitPushes() {
  const WaitingMark mark(session_);
  pipeline_.WaitUntilBelow(1);
}

absl::Status TrainLoop::TrainLease(const Session::HeldLeasePtr& held) {
  const Lease& lease = held->task;
  uint64_t begin = lease.begin();
  for (uint32_t number = 0; begin < lease.end(); ++number, begin += job_->split_samples()) {
    if (number < session_->done(held)) continue;
    // What is computed does not depend on how many splits a lease has: no batch is of two.
    const uint64_t end = std::min(begin + job_->split_samples(), lease.end());
    RECON_RETURN_IF_ERROR(TrainSplit(held, number, begin, end));
    if (stop_.load() || open_.back()->dropped) break;
    RECON_RETURN_IF_ERROR(session_->fatal());
    RECON_RETURN_IF_ERROR(AdoptJob());
    if (open_.size() >= limits::kOpenSplitsMax) RECON_RETURN_IF_ERROR(WaitUntilBelow(1));
    RECON_RETURN_IF_ERROR(CompleteFinishedSplits());
    if (session_->lost(held)) break;
  }
  return absl::OkStatus();
}

absl::Status TrainLoop::TrainSplit(const Session::HeldLeasePtr& held, uint32_t number, uint64_t begin,
                                   uint64_t end) {
  if (!replica_->complete()) RECON_RETURN_IF_ERROR(PullReplica());
  auto split = std::make_shared<OpenSplit>();
  split->lease = held;
  split->number = number;
  open_.push_back(split);
  const uint64_t data_epoch = held->task.data_epoch();
  const std::vector<uint32_t>& order = OrderOf(held->task.data_epoch());
  Prefetcher batches(
      data_->train.get(),
      {order.begin() + static_cast<ptrdiff_t>(begin), order.begin() + static_cast<ptrdiff_t>(end)},
      job_->batch_samples(), &reading_);
  uint64_t order_key = data_epoch * data_->train->size() + begin;
  Batch batch;
  while (batches.Next(&batch)) {
    if (session_->lost(held) || split->dropped) break;
    const bool last = stop_.load();  // That batch takes the residual with it.
    RECON_RETURN_IF_ERROR(TrainBatch(batch, order_key, split, last));
    if (last) break;
    order_key += batch.samples;
  }
  // Its batches are computed again. Gradients that were not due are of other leases, too: they stay.
  if ((session_->lost(held) || split->dropped) && (inner_ != nullptr || round_)) ForgetUnpushed();
  if (round_) RECON_RETURN_IF_ERROR(EndRound(/*flush=*/stop_.load()));
  split->submitted = true;
  if (stop_.load()) split->dropped = true;
  return absl::OkStatus();
}

absl::StatusOr<absl::Duration> TrainLoop::AwaitPlace(int pushes) {
  const absl::Time arrived = Now();
  RECON_RETURN_IF_ERROR(WaitUntilBelow(session_->must_drain() ? 1 : pushes));
  const absl::Duration stall = Now() - arrived;
  RECON_RETURN_IF_ERROR(session_->fatal());
  RECON_RETURN_IF_ERROR(AdoptReplies());
  RECON_RETURN_IF_ERROR(CompleteFinishedSplits());
  return stall;
}

template <typename Compute>
absl::StatusOr<absl::Duration> TrainLoop::TimeBatch(const Compute& compute) {
  const absl::Time start = Now();
  RECON_ASSIGN_OR_RETURN(const BatchResult result, compute());
  const absl::Duration spent = Now() - start;
  absl::SleepFor(std::max(spent, options_.step_time) * options_.slow_factor - spent);
  const absl::Duration took = Now() - start;
  compute_seconds_.Observe(absl::ToDoubleSeconds(took));
  const bool first = session_->counters()->batches++ == 0;
  std::atomic<double>& usual = session_->counters()->batch_seconds;
  const double seconds = absl::ToDoubleSeconds(took);
  if (usual > 0) {
    usual = usual + (std::min(seconds, kUsualAtMost * usual) - usual) / kUsualBatches;
  } else if (!first) {
    usual = seconds;
  }
  const double loss = result.loss_sum / static_cast<double>(result.samples);
  if (!std::isfinite(loss)) {
    return absl::OutOfRangeError(absl::StrCat("the loss is ", loss, "; is the learning rate too high?"));
  }
  loss_.Set(loss);
  session_->counters()->last_loss = loss;
  return took;
}

absl::Status TrainLoop::TrainBatch(const Batch& batch, uint64_t order_key,
                                   const std::shared_ptr<OpenSplit>& split, bool flush) {
  RECON_RETURN_IF_ERROR(AdoptJob());
  if (split->dropped) return absl::OkStatus();
  if (in_rounds()) return TrainInRound(batch, order_key, split, flush);
  const absl::Time arrived = Now();
  RECON_ASSIGN_OR_RETURN(const absl::Duration stall, AwaitPlace(depth()));
  RECON_ASSIGN_OR_RETURN(CommPipeline::Push push, NewPush(order_key, batch.samples, flush));
  RECON_ASSIGN_OR_RETURN(const absl::Duration compute, TimeBatch([&] {
                           return backend_->GradientInto(batch, replica_->view(), push.gradient.get());
                         }));
  policy_->NoteStep(Now() - arrived, compute, stall);
  RECON_ASSIGN_OR_RETURN(push.step, TakeStep());
  Submit(std::move(push), split, /*steps=*/1);
  return absl::OkStatus();
}

absl::StatusOr<TrainLoop::Round> TrainLoop::BeginRound(uint64_t order_key,
                                                       const std::shared_ptr<OpenSplit>& split) {
  Round round;
  round.order_key = order_key;
  round.steps_max = RoundSteps();
  round.arrived = Now();
  round.split = split;
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

void TrainLoop::ForgetUnpushed() {
  round_.reset();
  sum_.Clear();
  inner_begun_ = false;
}

absl::Status TrainLoop::TrainInRound(const Batch& batch, uint64_t order_key,
                                     const std::shared_ptr<OpenSplit>& split, bool flush) {
  if (!round_) {
    RECON_ASSIGN_OR_RETURN(round_, BeginRound(order_key, split));
  }
  // No reply is adopted before the round's end: all of it is computed from the versions that its push names.
  const ParameterView parameters = inner_ != nullptr ? inner_->view() : replica_->view();
  RECON_ASSIGN_OR_RETURN(const absl::Duration compute, TimeBatch([&] {
                           return backend_->Gradient(batch, parameters, absl::MakeSpan(scratch_));
                         }));
  if (inner_ != nullptr) {
    inner_->Step(order_key / job_->batch_samples(), scratch_, batch.samples);
  } else {
    sum_.Add(scratch_, batch.samples, replica_->versions(), replica_->cluster_epoch());
  }
  round_->compute += compute;
  round_->samples += batch.samples;
  ++round_->steps;
  return flush || round_->steps == round_->steps_max ? EndRound(flush) : absl::OkStatus();
}

uint32_t TrainLoop::RoundSteps() const {
  if (inner_ == nullptr) return options_.accumulate;
  const uint32_t told = job_->policy().local_steps_by_speed() ? session_->local_steps() : 0;
  if (told == 0) return schedule_.steps();
  const uint32_t of_fragment = (told + schedule_.fragments() / 2) / schedule_.fragments();
  return std::clamp(of_fragment, 1u, schedule_.steps());
}

absl::Status TrainLoop::EndRound(bool flush) {
  Round round = *std::exchange(round_, std::nullopt);
  if (inner_ != nullptr && schedule_.partial()) {
    // A fragment's push may be on its way there while the one before is on its way back.
    const int under_way = flush ? 1 : std::min(options_.depth, static_cast<int>(schedule_.fragments()));
    RECON_ASSIGN_OR_RETURN(round.stall, AwaitPlace(under_way));
    if (round.split->dropped) {
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
  } else {
    taken = sum_.Take(due, replica_->cluster_epoch(), absl::MakeSpan(scratch_));
  }
  RECON_ASSIGN_OR_RETURN(CommPipeline::Push push,
                         NewPush(round.order_key, round.samples, flush, std::move(due)));
  push.step = step;
  if (inner_ == nullptr) push.base_versions = std::move(taken.versions);
  push.shard_samples = std::move(taken.samples);
  RECON_RETURN_IF_ERROR(backend_->Load(scratch_, push.gradient.get()));
  policy_->NoteStep(Now() - round.arrived, round.compute, round.stall);
  Submit(std::move(push), round.split, round.steps);
  return absl::OkStatus();
}

absl::StatusOr<uint64_t> TrainLoop::TakeStep() {
  while (true) {
    if (const std::optional<uint64_t> step = session_->TakeStep()) return *step;
    AwaitPushes();  // What they bring comes later: the gradient was computed from what there is.
    RECON_RETURN_IF_ERROR(session_->fatal());
  }
}

void TrainLoop::Submit(CommPipeline::Push push, const std::shared_ptr<OpenSplit>& split, uint64_t steps) {
  ++split->pushes_open;
  push.done = [this, split, steps, samples = push.samples](bool applied) {
    if (!applied) split->dropped = true;
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
    --split->pushes_open;
  };
  pipeline_.Submit(std::move(push));
}

absl::StatusOr<CommPipeline::Push> TrainLoop::NewPush(uint64_t order_key, uint64_t samples, bool flush,
                                                      std::vector<bool> due) {
  CommPipeline::Push push;
  RECON_ASSIGN_OR_RETURN(push.gradient, pipeline_.TakeBuffer());
  push.order_key = order_key;
  push.samples = static_cast<uint32_t>(samples);
  push.base_versions = replica_->versions();
  push.base_epoch = replica_->cluster_epoch();
  push.local = inner_ != nullptr;
  const double data_epochs = static_cast<double>(order_key) / static_cast<double>(data_->train->size());
  push.plan = policy_->PlanFor(data_epochs, flush, std::move(due), Now());
  // By what is computed, not by who computes it: two runs with one seed make the same choices.
  uint64_t state = job_->seed() ^ order_key;
  push.plan.seed = SplitMix64(&state);
  return push;
}

absl::Status TrainLoop::FlushResidual() {
  // Synchronous workers are given a last batch to send it with: a push of its own would be a step.
  const bool moved = inner_ != nullptr && inner_begun_ && inner_->holds();
  const bool held = sum_.holds() || moved;
  if (synchronous() || (session_->counters()->residual_norm == 0 && !held) || !replica_->complete()) {
    return absl::OkStatus();
  }
  RECON_ASSIGN_OR_RETURN(CommPipeline::Push push, NewPush(0, 1, /*flush=*/true));
  if (held) {
    if (moved) (void)inner_->TakeMovement(/*due=*/{}, absl::MakeSpan(scratch_));
    if (!moved)
      push.base_versions =
          sum_.Take(/*due=*/{}, replica_->cluster_epoch(), absl::MakeSpan(scratch_)).versions;
    RECON_RETURN_IF_ERROR(backend_->Load(scratch_, push.gradient.get()));
  } else {
    RECON_RETURN_IF_ERROR(backend_->ZeroGradient(push.gradient.get()));
  }
  RECON_ASSIGN_OR_RETURN(push.step, TakeStep());
  push.done = [](bool) {};
  pipeline_.Submit(std::move(push));
  AwaitPushes();
  return session_->fatal();
}

absl::Status TrainLoop::CompleteFinishedSplits() {
  const WaitingMark mark(session_);
  // In their order: it is that of a lease's splits.
  while (!open_.empty() && open_.front()->submitted && open_.front()->pushes_open == 0) {
    const std::shared_ptr<OpenSplit> split = open_.front();
    open_.pop_front();
    if (split->dropped || session_->lost(split->lease)) {
      session_->Abandon(split->lease);
      continue;
    }
    const absl::Status status = session_->Complete(split->lease, split->number, EvalResult());
    if (absl::IsAborted(status)) {
      LogWarn("a split of data epoch {} was lost: {}",
              ShownDataEpoch(split->lease->task.data_epoch(), /*training=*/true), status.message());
    } else if (!status.ok()) {
      return status;
    }
  }
  return absl::OkStatus();
}

absl::Status TrainLoop::EvaluateSplit(const Session::HeldLeasePtr& held) {
  // With what the server has now, not with what this worker last computed from.
  RECON_RETURN_IF_ERROR(WaitUntilBelow(1));
  RECON_RETURN_IF_ERROR(PullReplica());
  const Lease& lease = held->task;
  std::vector<uint32_t> indices(lease.end() - lease.begin());
  std::iota(indices.begin(), indices.end(), static_cast<uint32_t>(lease.begin()));
  Prefetcher batches(data_->test.get(), std::move(indices), job_->batch_samples(), &reading_);
  EvalResult total;
  Batch batch;
  while (batches.Next(&batch)) {
    if (stop_.load() || session_->lost(held)) {
      session_->Abandon(held);
      return absl::OkStatus();
    }
    RECON_ASSIGN_OR_RETURN(const BatchResult result, backend_->Evaluate(batch, replica_->view()));
    ++session_->counters()->batches;
    total.set_samples(total.samples() + result.samples);
    total.set_correct(total.correct() + result.correct);
    total.set_loss_sum(total.loss_sum() + result.loss_sum);
  }
  const absl::Status status = session_->Complete(held, 0, total);
  return absl::IsAborted(status) ? absl::OkStatus() : status;
}

absl::Status TrainLoop::SendInitialValues() {
  const absl::Span<float> initial = replica_->TakeInitialValues();
  backend_->InitialValues(job_->seed(), initial);
  std::vector<float> values(initial.begin(), initial.end());
  const Session::Standing standing = session_->standing();
  const absl::Status status = pipeline_.SendInitialValues(std::move(values));
  // Whatever happened, the next question for work tells whether the server still wants them.
  Backoff backoff;
  return status.ok() ? status : session_->Recover(status, standing, &backoff);
}

absl::Status TrainLoop::PullReplica() {
  const WaitingMark mark(session_);
  return PullParameters(&pipeline_, replica_);
}

absl::Status TrainLoop::WaitUntilBelow(int pushes) {
  const WaitingMark mark(session_);
  while (!pipeline_.WaitUntilBelowOrReplies(pushes)) RECON_RETURN_IF_ERROR(Adopt(pipeline_.TakeReplies()));
  return absl::OkStatus();
}

absl::Status TrainLoop::AdoptReplies() {
  RECON_RETURN_IF_ERROR(Adopt(pipeline_.TakeReplies()));
  return replica_->complete() ? absl::OkStatus() : PullReplica();
}

absl::Status TrainLoop::Adopt(const std::vector<Frame>& replies) {
  for (const Frame& reply : replies) RECON_RETURN_IF_ERROR(replica_->Adopt(reply));
  return absl::OkStatus();
}

const std::vector<uint32_t>& TrainLoop::OrderOf(uint32_t data_epoch) {
  if (order_epoch_ != data_epoch) {
    order_ = ShuffledOrder(data_->train->size(), job_->seed(), data_epoch);
    order_epoch_ = data_epoch;
  }
  return order_;
}

}  // namespace recon
