#include "worker/process/train_loop.h"

#include <algorithm>
#include <cmath>
#include <new>
#include <numeric>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/clock.h"
#include "common/base/log.h"
#include "common/base/sleep.h"
#include "common/base/status_macros.h"
#include "common/trace/span_names.h"
#include "worker/data/prefetcher.h"

namespace recon {
namespace {

// Between two questions for work when there is none.
constexpr absl::Duration kIdlePoll = absl::Milliseconds(50);

}  // namespace

TrainLoop::TrainLoop(const Options& options, ModelBackend* backend, const TrainAndTest* data,
                     Trainer* trainer)
    : options_(options),
      backend_(backend),
      data_(data),
      trainer_(trainer),
      plan_(options.batch),
      scaler_(options.loss_scale),
      reading_("reading") {
  if (options_.precision == Precision::kFp16) trainer_->NoteLossScale(scaler_.scale());
}

absl::Status TrainLoop::Run() {
  RECON_RETURN_IF_ERROR(trainer_->Begin());
  while (!trainer_->stopping()) {
    RECON_ASSIGN_OR_RETURN(const Trainer::Work work, trainer_->NextWork());
    if (work.kind == Trainer::Work::Kind::kInitialValues) {
      RECON_RETURN_IF_ERROR(SendInitialValues());
    } else if (work.kind == Trainer::Work::Kind::kFinished) {
      break;
    } else if (work.kind == Trainer::Work::Kind::kNone) {
      // With splits whose pushes are under way, perhaps.
      const Trainer::Pause mark(*trainer_, trace::kWaitingForWork);
      Sleep(kIdlePoll);
    } else if (work.kind == Trainer::Work::Kind::kTrain) {
      RECON_RETURN_IF_ERROR(TrainLease(work.lease));
    } else {
      RECON_RETURN_IF_ERROR(EvaluateSplit(work.lease));
    }
  }
  return trainer_->Finish();
}

absl::Status TrainLoop::TrainLease(const Session::HeldLeasePtr& held) {
  const Lease& lease = held->task;
  uint64_t begin = lease.begin();
  for (uint32_t number = 0; begin < lease.end(); ++number, begin += trainer_->job().split_samples()) {
    if (number < trainer_->done(held)) continue;
    // What is computed does not depend on how many splits a lease has: no batch is of two.
    const uint64_t end = std::min(begin + trainer_->job().split_samples(), lease.end());
    const Trainer::SplitPtr split = trainer_->OpenSplit(held, number);
    RECON_RETURN_IF_ERROR(TrainSplit(lease.data_epoch(), begin, end, split));
    const bool dropped = trainer_->dropped(split);
    RECON_RETURN_IF_ERROR(trainer_->CloseSplit(split));
    if (trainer_->stopping() || dropped) break;
    RECON_RETURN_IF_ERROR(trainer_->MakeRoomForSplit());
    if (trainer_->lost(held)) break;
  }
  return absl::OkStatus();
}

absl::Status TrainLoop::TrainSplit(uint32_t data_epoch, uint64_t begin, uint64_t end,
                                   const Trainer::SplitPtr& split) {
  const std::vector<uint32_t>& order = OrderOf(data_epoch);
  const uint32_t samples = plan_.NextBatch(trainer_->job());
  if (plan_.says()) trainer_->NoteBatchSize(samples, plan_.Piece(samples));
  Prefetcher batches(
      data_->train.get(),
      {order.begin() + static_cast<ptrdiff_t>(begin), order.begin() + static_cast<ptrdiff_t>(end)}, samples,
      &reading_);
  uint64_t order_key = data_epoch * data_->train->size() + begin;
  Batch batch;
  while (batches.Next(&batch)) {
    const bool last = trainer_->stopping();  // That batch takes the residual with it.
    const absl::Time arrived = Now();
    RECON_ASSIGN_OR_RETURN(const auto place, trainer_->BeginBatch(order_key, split));
    if (!place) break;
    RECON_RETURN_IF_ERROR(TrainBatch(batch, *place, arrived, last));
    if (last) break;
    order_key += batch.samples;
  }
  return absl::OkStatus();
}

absl::Status TrainLoop::TrainBatch(const Batch& batch, const Trainer::Place& place, absl::Time arrived,
                                   bool last) {
  const absl::Time start = Now();
  RECON_ASSIGN_OR_RETURN(const BatchResult result, ComputeBatch(batch, place));
  const absl::Duration spent = Now() - start;
  Sleep(std::max(spent, options_.step_time) * options_.slow_factor - spent);
  Trainer::Computed computed;
  computed.samples = batch.samples;
  computed.took = Now() - start;
  computed.loss = result.loss_sum / static_cast<double>(result.samples);
  if (result.overflow) {
    if (options_.precision == Precision::kFp16 && !scaler_.at_least()) {
      scaler_.NoteOverflow();
      trainer_->NoteLossScale(scaler_.scale());
      trainer_->SkipBatch();
      return absl::OkStatus();
    }
    computed.diverged = absl::StrCat("values do not stay finite in ", PrecisionName(options_.precision),
                                     " (--precision); is the learning rate too high?");
  } else if (options_.precision == Precision::kFp16) {
    scaler_.NoteFinite();
    trainer_->NoteLossScale(scaler_.scale());
  }
  const absl::Duration computing = computed.took;
  RECON_RETURN_IF_ERROR(trainer_->EndBatch(std::move(computed), last));
  if (!plan_.follows()) return absl::OkStatus();
  const absl::Time now = Now();
  for (const std::string& line :
       plan_.Note(batch.samples, now - arrived, computing, options_.memory_used(), now)) {
    LogInfo("{}", line);
    backend_->FreeScratch();
  }
  return absl::OkStatus();
}

absl::StatusOr<BatchResult> TrainLoop::ComputeBatch(const Batch& batch, const Trainer::Place& place) {
  uint32_t samples = plan_.Piece(batch.samples);
  while (true) {
    absl::StatusOr<BatchResult> result = ComputePieces(batch, place, samples);
    if (!absl::IsResourceExhausted(result.status())) return result;
    backend_->FreeScratch();
    const std::optional<uint32_t> fewer = plan_.OutOfMemory(samples, Now());
    if (!fewer) {
      return absl::ResourceExhaustedError(
          absl::StrCat("no memory to compute ", samples,
                       " samples at once, see --micro-batch: ", result.status().message()));
    }
    LogWarn("no memory to compute {} samples at once, now {} ({})", samples, *fewer,
            result.status().message());
    samples = *fewer;
  }
}

absl::StatusOr<BatchResult> TrainLoop::ComputePieces(const Batch& batch, const Trainer::Place& place,
                                                     size_t samples) {
  GradientTerms terms;
  if (options_.precision == Precision::kFp16) terms.loss_scale = scaler_.scale();
  if (samples >= batch.samples) return ComputePiece(batch, terms, place);
  terms.batch_samples = batch.samples;
  const size_t features = batch.features.size() / batch.samples;
  BatchResult sum;
  for (size_t at = 0; at < batch.samples && !sum.overflow; at += samples) {
    const size_t end = std::min(at + samples, batch.samples);
    piece_.samples = end - at;
    piece_.features.assign(batch.features.begin() + static_cast<ptrdiff_t>(at * features),
                           batch.features.begin() + static_cast<ptrdiff_t>(end * features));
    piece_.labels.assign(batch.labels.begin() + static_cast<ptrdiff_t>(at),
                         batch.labels.begin() + static_cast<ptrdiff_t>(end));
    RECON_ASSIGN_OR_RETURN(const BatchResult result, ComputePiece(piece_, terms, place));
    terms.add = true;
    sum.samples += result.samples;
    sum.correct += result.correct;
    sum.loss_sum += result.loss_sum;
    sum.overflow = result.overflow;
  }
  return sum;
}

absl::StatusOr<BatchResult> TrainLoop::ComputePiece(const Batch& piece, const GradientTerms& terms,
                                                    const Trainer::Place& place) {
  try {
    return place.gradient != nullptr ? backend_->GradientInto(piece, place.parameters, place.gradient, terms)
                                     : backend_->Gradient(piece, place.parameters, place.values, terms);
  } catch (const std::bad_alloc&) {
    return absl::ResourceExhaustedError("the machine has no memory for it");
  }
}

absl::Status TrainLoop::EvaluateSplit(const Session::HeldLeasePtr& held) {
  RECON_ASSIGN_OR_RETURN(const ParameterView parameters, trainer_->BeginEvaluation());
  const Lease& lease = held->task;
  std::vector<uint32_t> indices(lease.end() - lease.begin());
  std::iota(indices.begin(), indices.end(), static_cast<uint32_t>(lease.begin()));
  Prefetcher batches(data_->test.get(), std::move(indices), trainer_->job().batch_samples(), &reading_);
  EvalResult total;
  Batch batch;
  while (batches.Next(&batch)) {
    if (trainer_->stopping() || trainer_->lost(held)) {
      trainer_->Abandon(held);
      return absl::OkStatus();
    }
    RECON_ASSIGN_OR_RETURN(const BatchResult result, backend_->Evaluate(batch, parameters));
    trainer_->NoteEvaluated();
    total.set_samples(total.samples() + result.samples);
    total.set_correct(total.correct() + result.correct);
    total.set_loss_sum(total.loss_sum() + result.loss_sum);
  }
  return trainer_->EndEvaluation(held, total);
}

absl::Status TrainLoop::SendInitialValues() {
  std::vector<float> values(trainer_->layout().params());
  backend_->InitialValues(trainer_->job().seed(), absl::MakeSpan(values));
  return trainer_->SendInitialValues(values);
}

const std::vector<uint32_t>& TrainLoop::OrderOf(uint32_t data_epoch) {
  if (order_epoch_ != data_epoch) {
    order_ = ShuffledOrder(data_->train->size(), trainer_->job().seed(), data_epoch);
    order_epoch_ = data_epoch;
  }
  return order_;
}

}  // namespace recon
