#pragma once

#include <algorithm>
#include <atomic>
#include <list>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "common/base/lane.h"
#include "common/metrics/metrics.h"
#include "common/rpc/credentials.h"
#include "worker/comm/comm_pipeline.h"
#include "worker/comm/reconstruct.h"
#include "worker/comm/replica.h"
#include "worker/comm/session.h"
#include "worker/data/dataset.h"
#include "worker/model/model_backend.h"
#include "worker/training/gradient_sum.h"
#include "worker/training/inner_optimizer.h"
#include "worker/training/push_schedule.h"

namespace recon {

// What a worker does: lease, read, compute, hand over to the pipeline, adopt what came back; until the
// job is finished or a stop is asked for.
//
// Threads: Run() on one thread, RequestStop() on any. The pointers must outlive the loop.
class TrainLoop {
 public:
  struct Options {
    int depth = 2;  // Pushes under way, where the job's bound allows so many.
    EncoderOptions encoder;
    // The mean of so many batches' gradients makes one push; a lease's last may be of fewer. Without local
    // steps.
    uint32_t accumulate = 1;
    // Simulated slowness: each step takes so many times its computing time. 1 = off.
    double slow_factor = 1;
    // And at least so long.
    absl::Duration step_time;
    ParameterSource parameters_from = ParameterSource::kServer;
    TlsFlags tls;  // For other workers.
  };

  TrainLoop(const Options& options, const ParamLayout* layout, ModelBackend* backend, CodecPolicy* policy,
            const TrainAndTest* data, ParamClient* client, Session* session, Replica* replica,
            Metrics* metrics);
  ~TrainLoop();

  // OK when the job is finished or a stop was asked for.
  absl::Status Run();
  void RequestStop() { stop_.store(true); }

 private:
  struct OpenSplit;
  // Batches that become one push: local steps, or gradients that are accumulated. It ends with its lease at
  // the latest; what the push has not of it, since not all shards are due, comes with a later one.
  struct Round {
    uint64_t order_key = 0;
    uint64_t samples = 0;
    uint64_t steps = 0;
    uint64_t steps_max = 1;
    absl::Time arrived;
    absl::Duration compute;
    absl::Duration stall;
    std::shared_ptr<OpenSplit> split;
  };

  bool synchronous() const { return job_->bound() == 0; }
  bool in_rounds() const {
    return inner_ != nullptr || options_.accumulate > 1 || schedule_.partial() || sum_.holds();
  }
  // A worker must not run further ahead on its own than the bound lets it. (Fragments of local steps are not
  // ahead of each other.)
  int depth() const {
    return job_->bound() < 0 ? options_.depth : std::min(options_.depth, job_->bound() + 1);
  }
  // Goes by what the last registration said. What was begun by another policy, and is not pushed, is dropped.
  absl::Status AdoptJob();
  absl::StatusOr<Session::Acquired> Acquire();
  // Until none is under way; what they bring stays where it is.
  void AwaitPushes();
  absl::Status TrainLease(const Session::HeldLeasePtr& lease);
  // Trains one split of the lease, samples [begin, end); `number` counts the lease's splits from 0.
  absl::Status TrainSplit(const Session::HeldLeasePtr& lease, uint32_t number, uint64_t begin, uint64_t end);
  // One batch: pushed, or one step of the round. `flush`: it is the last this worker does.
  absl::Status TrainBatch(const Batch& batch, uint64_t order_key, const std::shared_ptr<OpenSplit>& split,
                          bool flush);
  absl::Status TrainInRound(const Batch& batch, uint64_t order_key, const std::shared_ptr<OpenSplit>& split,
                            bool flush);
  // Waits for a place, and begins with the parameters that there are.
  absl::StatusOr<Round> BeginRound(uint64_t order_key, const std::shared_ptr<OpenSplit>& split);
  // Pushes how far local steps have come, or the mean of the gradients.
  absl::Status EndRound(bool flush);
  // Batches of a round that begins now.
  uint32_t RoundSteps() const;
  // Drops the round, and what else was computed and is not pushed.
  void ForgetUnpushed();
  // Waits for a place in the pipeline and adopts what has come; how long it waited.
  absl::StatusOr<absl::Duration> AwaitPlace(int pushes);
  // Checks and accounts for what `compute` gives; simulates slowness.
  template <typename Compute>
  absl::StatusOr<absl::Duration> TimeBatch(const Compute& compute);
  void Submit(CommPipeline::Push push, const std::shared_ptr<OpenSplit>& split, uint64_t steps);
  // Its step; waits for those under way if they would be too far behind.
  absl::StatusOr<uint64_t> TakeStep();
  absl::StatusOr<CommPipeline::Push> NewPush(uint64_t order_key, uint64_t samples, bool flush,
                                             std::vector<bool> due = {});
  // Sends what was kept back, when there is no batch to send it with.
  absl::Status FlushResidual();
  absl::Status EvaluateSplit(const Session::HeldLeasePtr& lease);
  absl::Status SendInitialValues();
  // The first parameters.
  absl::Status PullReplica();
  absl::Status AdoptReplies();
  // Until fewer pushes are under way; takes parameters meanwhile as they come.
  absl::Status WaitUntilBelow(int pushes);
  absl::Status Adopt(const std::vector<Frame>& replies);
  absl::Status CompleteFinishedSplits();
  const std::vector<uint32_t>& OrderOf(uint32_t data_epoch);

  // Set in the constructor.
  const Options options_;
  const ParamLayout* const layout_;
  ModelBackend* const backend_;
  CodecPolicy* const policy_;
  const TrainAndTest* const data_;
  Session* const session_;
  Replica* const replica_;
  prometheus::Counter& steps_;
  prometheus::Counter& samples_;
  prometheus::Gauge& loss_;
  prometheus::Histogram& compute_seconds_;

  // Run() only.
  std::shared_ptr<const JobConfig> job_;
  // With local steps. There is a round while some of its steps are done and not pushed.
  std::unique_ptr<InnerOptimizer> inner_;
  bool inner_begun_ = false;
  PushSchedule schedule_;
  std::optional<Round> round_;
  std::vector<float> scratch_;  // A batch's gradient, or how far a round has moved.
  GradientSum sum_;
  std::list<std::shared_ptr<OpenSplit>> open_;
  std::vector<uint32_t> order_;
  uint32_t order_epoch_ = ~0u;

  std::atomic<bool> stop_{false};
  Lane reading_;
  CommPipeline pipeline_;
};

}  // namespace recon
