// How what was computed becomes pushes: a batch as it comes, or rounds of several batches.

#include <algorithm>
#include <utility>

#include "common/base/check.h"
#include "common/base/clock.h"
#include "common/base/log.h"
#include "common/base/status_macros.h"
#include "worker/data/dataset.h"
#include "worker/training/trainer.h"

namespace recon {
namespace {

// A batch that usually takes longer is pushed when it is whole: a quarter of kReplyWaitMax.
constexpr absl::Duration kPushedAsItComesMax = absl::Milliseconds(2500);

}  // namespace

absl::StatusOr<bool> Trainer::PushAsItComes(const Computed& computed) {
  OpenBatch& batch = *batch_;
  // Replies to what came first are given up after a while.
  const bool slow = absl::Seconds(session_->counters()->batch_seconds.load()) > kPushedAsItComesMax;
  if (round_ || job_->means() || job_->clip_norm() > 0 || policy_->automatic() || slow ||
      batch.push.gradient->host.empty()) {
    return false;
  }
  // A quorum waits longer for who is late and sends: for a link, not for what is computed yet.
  if (job_->policy().quorum() > 0 && pipeline_.last_was_late()) return false;
  std::unique_ptr<GradientBuffer> gradient = std::move(batch.push.gradient);
  batch.gradient = absl::MakeSpan(gradient->host);
  RECON_ASSIGN_OR_RETURN(CommPipeline::Push push,
                         NewPush(batch.order_key, computed.samples, /*flush=*/stop_.load()));
  push.gradient = std::move(gradient);
  push.weight = static_cast<uint32_t>(computed.weight);
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

absl::StatusOr<std::optional<ParameterView>> Trainer::Settle() {
  RECON_CHECK(!batch_, "a batch has begun");
  if (inner_ != nullptr && inner_begun_ && (round_ || schedule_.partial())) return inner_->view();
  if (!synchronous() && inner_ == nullptr) return std::nullopt;
  // Batches of a round are computed from the versions that its push names.
  if (!round_) {
    RECON_RETURN_IF_ERROR(AwaitPlace(1).status());
    RECON_RETURN_IF_ERROR(AdoptJob());
  }
  return replica_->view();
}

void Trainer::ForgetUnpushed() {
  round_.reset();
  sum_.Clear();
  inner_begun_ = false;
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

absl::StatusOr<uint64_t> Trainer::TakeStep() {
  while (true) {
    if (const std::optional<uint64_t> step = session_->TakeStep()) return last_step_ = *step;
    AwaitPushes();  // What they bring comes later: the gradient was computed from what there is.
    RECON_RETURN_IF_ERROR(session_->fatal());
  }
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
  push.plan.zeros_change_nothing = job_->zeros_change_nothing();
  // By what is computed, not by who computes it: two runs with one seed make the same choices.
  uint64_t state = job_->seed() ^ order_key;
  push.plan.seed = SplitMix64(&state);
  return push;
}

void Trainer::Submit(CommPipeline::Push push, Splits splits, uint64_t steps) {
  for (const SplitPtr& split : *splits) split->BeginPush();
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
    for (const SplitPtr& split : *splits) split->EndPush(applied);
  };
  pipeline_.Submit(std::move(push));
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

}  // namespace recon
