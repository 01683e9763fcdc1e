#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "common/base/lane.h"
#include "worker/data/dataset.h"
#include "worker/model/loss_scaler.h"
#include "worker/model/model_backend.h"
#include "worker/process/batch_plan.h"
#include "worker/training/trainer.h"

namespace recon {

// What recon-worker does with its own models: reads batches, computes gradients and evaluations.
//
// Threads: Run() on one thread. The pointers must outlive the loop.
class TrainLoop {
 public:
  struct Options {
    // Simulated slowness: each step takes so many times its computing time. 1 = off.
    double slow_factor = 1;
    // And at least so long.
    absl::Duration step_time;
    BatchFlags batch;
    Precision precision = Precision::kFp32;
    float loss_scale = LossScaler::kStart;  // To begin with, with fp16.
    // The share of the device's memory that is in use; none if it is not known.
    std::function<std::optional<double>()> memory_used;
  };

  TrainLoop(const Options& options, ModelBackend* backend, const TrainAndTest* data, Trainer* trainer);

  // OK when the job is finished or the trainer was asked to stop.
  absl::Status Run();

 private:
  absl::Status TrainLease(const Session::HeldLeasePtr& lease);
  // Trains samples [begin, end) of the pass.
  absl::Status TrainSplit(uint32_t data_epoch, uint64_t begin, uint64_t end, const Trainer::SplitPtr& split);
  // One batch, begun at `arrived`; `last`: this worker does no other.
  absl::Status TrainBatch(const Batch& batch, const Trainer::Place& place, absl::Time arrived, bool last);
  // Its gradient, in pieces that the device has memory for.
  absl::StatusOr<BatchResult> ComputeBatch(const Batch& batch, const Trainer::Place& place);
  absl::StatusOr<BatchResult> ComputePieces(const Batch& batch, const Trainer::Place& place, size_t samples);
  absl::StatusOr<BatchResult> ComputePiece(const Batch& piece, const GradientTerms& terms,
                                           const Trainer::Place& place);
  absl::Status EvaluateSplit(const Session::HeldLeasePtr& lease);
  absl::Status SendInitialValues();
  const std::vector<uint32_t>& OrderOf(uint32_t data_epoch);

  const Options options_;
  ModelBackend* const backend_;
  const TrainAndTest* const data_;
  Trainer* const trainer_;
  std::vector<uint32_t> order_;
  std::optional<uint32_t> order_epoch_;  // Whose it is.
  BatchPlan plan_;
  LossScaler scaler_;  // With fp16.
  Batch piece_;
  Lane reading_;
};

}  // namespace recon
