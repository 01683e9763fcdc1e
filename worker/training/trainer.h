#pragma once

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "common/metrics/metrics.h"
#include "common/rpc/credentials.h"
#include "common/tensor/param_layout.h"
#include "common/tensor/parameter_view.h"
#include "common/trace/recorder.h"
#include "worker/comm/comm_pipeline.h"
#include "worker/comm/reconstruct.h"
#include "worker/comm/replica.h"
#include "worker/comm/session.h"
#include "worker/comm/step_mean.h"
#include "worker/encode/codec_policy.h"
#include "worker/encode/gradient_progress.h"
#include "worker/encode/gradient_space.h"
#include "worker/training/gradient_sum.h"
#include "worker/training/inner_optimizer.h"
#include "worker/training/open_splits.h"
#include "worker/training/push_schedule.h"

namespace recon {

// What any worker does around the computing of gradients: takes leases, begins each batch with the parameters
// that it is to be computed from, turns gradients into pushes or local steps as the job's policy says, and
// completes splits when what they stand for is acknowledged. recon-worker and the Python package are its
// users.
//
//   RECON_RETURN_IF_ERROR(trainer.Begin());
//   while work is kTrain, for each split of the lease that is not done:
//     SplitPtr split = trainer.OpenSplit(lease, number);
//     for each batch:
//       StatusOr<Place> place = trainer.BeginBatch(order_key, split);   // Parameters stay as they are
//       until... compute; put the mean gradient into place->gradient or place->values;
//       trainer.EndBatch(computed, flush);                              // ...here.
//     trainer.CloseSplit(split);
//   trainer.Finish();
//
// Threads: one, the training thread; RequestStop() on any. The pointers must outlive the trainer.
class Trainer {
 public:
  struct Options {
    int depth = 2;  // Pushes under way, where the job's bound allows so many.
    EncoderOptions encoder;
    // The mean of so many batches' gradients makes one push; a split's last may be of fewer. Without local
    // steps.
    uint32_t accumulate = 1;
    ParameterSource parameters_from = ParameterSource::kServer;
    TlsFlags tls;  // For other workers.
    uint64_t train_samples = 0;
  };

  // A split whose pushes are under way: done when all are acknowledged.
  using SplitPtr = OpenSplitPtr;

  Trainer(const Options& options, const ParamLayout* layout, GradientSpace* space, CodecPolicy* policy,
          ParamClient* client, Session* session, Replica* replica, Metrics* metrics);
  ~Trainer();

  // Everything that waits returns soon; nothing new is begun. What is under way is for Finish().
  void RequestStop() { stop_.store(true); }
  bool stopping() const { return stop_.load(); }

  // Goes by the job's settings, and has its parameters, where the server has some. First of all.
  absl::Status Begin();

  // The next thing to do. It waits for no work to come: kNone says that there is none now. Splits whose
  // pushes are acknowledged are completed on the way.
  struct Work {
    enum class Kind { kNone, kTrain, kEvaluate, kInitialValues, kFinished };
    Kind kind = Kind::kNone;
    Session::HeldLeasePtr lease;  // Of kTrain and kEvaluate.
  };
  absl::StatusOr<Work> NextWork();
  // Answers kInitialValues: layout->params() finite values. If it fails for a reason that passes, the server
  // asks again.
  absl::Status SendInitialValues(absl::Span<const float> values);
  // Answers kEvaluate: with the parameters that the server has now.
  absl::StatusOr<ParameterView> BeginEvaluation();
  absl::Status EndEvaluation(const Session::HeldLeasePtr& lease, const EvalResult& result);
  // A batch of the evaluation is done: the server sees that it moves.
  void NoteEvaluated() { ++session_->counters()->batches; }
  void Abandon(const Session::HeldLeasePtr& lease) { session_->Abandon(lease); }

  // Split `number` of the lease, counted from 0. A batch is of one split; a push may be of several.
  SplitPtr OpenSplit(const Session::HeldLeasePtr& lease, uint32_t number) {
    return open_.Open(lease, number);
  }
  // No batch of it comes any more; what a round has of it is pushed.
  absl::Status CloseSplit(const SplitPtr& split);
  // Before the next split of a lease that has begun: waits where too many are open.
  absl::Status MakeRoomForSplit();
  // Its lease is lost, or a push of it was dropped: others compute it again.
  bool dropped(const SplitPtr& split) const;
  bool lost(const Session::HeldLeasePtr& lease) const { return session_->lost(lease); }
  // The lease's splits that others have completed, or this worker has.
  uint32_t done(const Session::HeldLeasePtr& lease) const { return session_->done(lease); }

  // Where a batch's gradient goes: `gradient`, or, where the batch is one of several that make a push,
  // `values`; the other is empty.
  struct Place {
    ParameterView parameters;
    GradientBuffer* gradient = nullptr;
    absl::Span<float> values;
  };
  // `order_key`: the number of the batch's first sample, counted over all data epochs; it fixes the order in
  // which gradients are summed. None if the split is dropped. Waits for a place in the pipeline.
  absl::StatusOr<std::optional<Place>> BeginBatch(uint64_t order_key, const SplitPtr& split);
  struct Computed {
    uint64_t samples = 0;
    // What the gradient weighs in a step's mean over workers: its tokens, where it is a mean over these; 0:
    // `samples`.
    uint64_t weight = 0;
    absl::Duration took;         // Computing alone.
    std::optional<double> loss;  // Mean over the samples.
    // Of each group of the layout, the learning rate that the update goes by; empty: the job's.
    std::vector<double> learning_rates;
    // Why nothing can be computed from the parameters there are, beside the loss; empty if it can.
    std::string diverged;
    // The place has no gradient, but the parameters after a step that an optimizer of the caller's has made.
    // With local steps only.
    bool moved = false;
  };
  // The gradient of the batch that has begun is pushed while it is being computed: Filled() says what of
  // place->gradient is written for good, EndBatch() that all is. `computed` as EndBatch() will have it; its
  // loss and time are not looked at. False where a push needs all of the gradient: with local steps,
  // accumulation, clipping, codecs that the server chooses, on a device, where a batch takes seconds, and of
  // who is late for a quorum.
  absl::StatusOr<bool> PushAsItComes(const Computed& computed);
  // Values [offset, offset + size). On any thread, between PushAsItComes() and EndBatch().
  void Filled(uint64_t offset, uint64_t size) { batch_->progress->Filled(offset, size); }
  bool pushing() const { return batch_ && batch_->progress != nullptr; }
  // The batch that has begun goes on with samples of this split, too.
  void AlsoOf(const SplitPtr& split);
  bool batch_begun() const { return batch_.has_value(); }
  // `flush`: it is the last that this worker does; what was kept back goes with it. OutOfRange if the loss is
  // not finite or `diverged` says something, unless the job is rolled back then: the batch is dropped, and
  // this waits for it.
  absl::Status EndBatch(Computed computed, bool flush = false);
  // Between two batches: waits until what was pushed is acknowledged, and has the parameters after it; splits
  // are completed on the way. Within a round of local steps they are the worker's own, and with fragments
  // always: there is nothing to wait for. None in an asynchronous job, which does not wait.
  absl::StatusOr<std::optional<ParameterView>> Settle();
  // Of the last push; in a synchronous job, the number of the step it was part of.
  uint64_t last_step() const { return last_step_; }
  // Nothing comes of the batch that has begun, but for what of it is pushed already; its samples count as
  // done.
  void DropBatch();
  // Likewise, of a batch that was computed and is of no use: loss scaling was too high for it. The next is
  // computed in its place.
  void SkipBatch();
  // What heartbeats say of batches, of the pieces they are computed in and of loss scaling; 0: nothing.
  void NoteBatchSize(uint32_t samples, uint32_t piece_samples);
  void NoteLossScale(double scale) { session_->counters()->loss_scale = scale; }

  // Waits for what is under way, sends what was kept back if a stop was asked for, and completes splits.
  absl::Status Finish();

  // The parameters as they are now, of the server.
  absl::StatusOr<ParameterView> Pull();

  // Of a job whose workers have the optimizer (JobConfig.means). EndBatch() is followed by AwaitMean(), which
  // waits until the batch's push counts or is known not to, and brings the mean of `step`: the next that this
  // worker's state is to take. It may be one before the push's, if that went with a later step. PullMean()
  // brings a step's mean without a push.
  enum class MeanIs { kHere, kOpen, kGone };
  // kGone: no server keeps it any more, the worker has to take another's state.
  absl::StatusOr<MeanIs> AwaitMean(uint64_t step);
  absl::StatusOr<MeanIs> PullMean(uint64_t step);
  absl::Span<const float> mean() const { return mean_.values(); }
  // How many pushes it is the mean of; 0: no server knows any more.
  uint32_t mean_pushes() const { return mean_.pushes(); }
  // Uploads the values of the group `state` as the state before `step`, as the upload of that number, which
  // is asked for once. Blocks; any thread.
  absl::Status SendState(std::vector<float> values, uint64_t step, uint64_t upload) {
    return pipeline_.SendState(std::move(values), step, upload);
  }
  // Whether what Pull() brought of the group `state` is of one upload.
  bool StateWhole() const;
  // The step of the next push, which is `step` at least from now on.
  uint64_t NextStepFrom(uint64_t step) {
    session_->SkipTo(step);
    return session_->first_new_step();
  }
  // Heartbeats say that nothing is computed for a reason, for as long as it lives; traces, for which.
  class Pause;

  const JobConfig& job() const { return *job_; }
  const ParamLayout& layout() const { return *layout_; }
  // A synchronous step is closed by who takes part in it.
  bool synchronous() const { return job_->bound() == 0; }
  bool local() const { return inner_ != nullptr; }

 private:
  // Those that a push is of.
  using Splits = std::shared_ptr<std::vector<SplitPtr>>;

  // Batches that become one push: local steps, or gradients that are accumulated. It ends with its split at
  // the latest; what the push has not of it, since not all shards are due, comes with a later one.
  struct Round {
    uint64_t order_key = 0;
    uint64_t samples = 0;
    uint64_t steps = 0;
    uint64_t steps_max = 1;
    absl::Time arrived;
    absl::Duration compute;
    absl::Duration stall;
    std::vector<double> learning_rates;
    Splits splits = std::make_shared<std::vector<SplitPtr>>();
  };
  // Between BeginBatch() and EndBatch().
  struct OpenBatch {
    uint64_t order_key = 0;
    absl::Time arrived;
    absl::Duration stall;
    CommPipeline::Push push;  // Without a round.
    Splits splits = std::make_shared<std::vector<SplitPtr>>();
    // Once it is pushed as it comes, by whom its gradient is held then.
    std::shared_ptr<GradientProgress> progress;
    absl::Span<float> gradient;
    int64_t traced_ns = 0;  // When its computing began, if that is traced.
  };

  bool in_rounds() const {
    return inner_ != nullptr || round_ || RoundSteps() > 1 || schedule_.partial() || sum_.holds();
  }
  // A worker must not run further ahead on its own than the bound lets it. (Fragments of local steps are not
  // ahead of each other.)
  int depth() const {
    return job_->bound() < 0 ? options_.depth : std::min(options_.depth, job_->bound() + 1);
  }
  // Goes by what the last registration said. What was begun by another policy, and is not pushed, is dropped.
  absl::Status AdoptJob();
  absl::Status AdoptPolicy(const JobConfig* before);
  // While nothing can be computed from the parameters there are.
  void AwaitRollback();
  absl::StatusOr<Session::Acquired> Acquire();
  // Until none is under way; what they bring stays where it is.
  void AwaitPushes();
  // Waits for a place, and begins with the parameters that there are.
  absl::StatusOr<Round> BeginRound(uint64_t order_key);
  // Pushes how far local steps have come, or the mean of the gradients.
  absl::Status EndRound(bool flush);
  // Batches of a round that begins now.
  uint32_t RoundSteps() const;
  // Drops the round, and what else was computed and is not pushed.
  void ForgetUnpushed();
  // Waits for a place in the pipeline and adopts what has come; how long it waited.
  absl::StatusOr<absl::Duration> AwaitPlace(int pushes);
  absl::Status Account(const Computed& computed);
  // A batch was computed until then, for the push that was numbered last, or for one to come.
  void TraceComputing(const OpenBatch& batch, int64_t end_ns, bool pushed) const;
  // A batch that was pushed as it came: its gradient is whole.
  void EndPush(OpenBatch batch, const Computed& computed);
  // Asynchronous workers each move what is averaged by their share: the server adds all of them.
  void ShareAveraged(absl::Span<float> values) const;
  void Submit(CommPipeline::Push push, Splits splits, uint64_t steps);
  // Its step; waits for those under way if they would be too far behind.
  absl::StatusOr<uint64_t> TakeStep();
  absl::StatusOr<CommPipeline::Push> NewPush(uint64_t order_key, uint64_t samples, bool flush,
                                             std::vector<bool> due = {});
  // Sends what was kept back, when there is no batch to send it with.
  absl::Status FlushResidual();
  // The first parameters.
  absl::Status PullReplica();
  absl::Status AdoptReplies();
  // Until fewer pushes are under way; takes parameters meanwhile as they come.
  absl::Status WaitUntilBelow(int pushes);
  absl::Status Adopt(const std::vector<Frame>& replies);
  absl::Status CompleteFinishedSplits();

  // Set in the constructor.
  const Options options_;
  const ParamLayout* const layout_;
  GradientSpace* const space_;
  CodecPolicy* const policy_;
  Session* const session_;
  Replica* const replica_;
  prometheus::Counter& steps_;
  prometheus::Counter& samples_;
  prometheus::Counter& skipped_;
  prometheus::Gauge& loss_;
  prometheus::Histogram& compute_seconds_;

  // Training thread only.
  std::shared_ptr<const JobConfig> job_;
  // With local steps. There is a round while some of its steps are done and not pushed.
  std::unique_ptr<InnerOptimizer> inner_;
  bool inner_begun_ = false;
  PushSchedule schedule_;
  std::optional<Round> round_;
  std::optional<OpenBatch> batch_;
  std::vector<float> scratch_;  // A batch's gradient, or how far a round has moved.
  GradientSum sum_;
  StepMean mean_;
  std::vector<bool> pushed_shards_;  // With means: those that pushes have; else empty, all.
  OpenSplits open_;
  uint64_t last_step_ = 0;
  int64_t evaluation_traced_ns_ = 0;  // When it began, if that is traced.

  std::atomic<bool> stop_{false};
  CommPipeline pipeline_;
};

class Trainer::Pause {
 public:
  // `why` is one of common/trace/span_names.h.
  Pause(Session* session, const char* why);
  Pause(const Trainer& trainer, const char* why) : Pause(trainer.session_, why) {}
  ~Pause();
  Pause(const Pause&) = delete;
  Pause& operator=(const Pause&) = delete;

 private:
  Session::Counters* const counters_;
  const char* const outer_;  // What the pause around this one is for.
  const trace::Span span_;
};

}  // namespace recon
