#include "server/scheduler/split_queue.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "common/base/limits.h"

namespace recon {
namespace {

uint64_t Splits(uint64_t samples, uint32_t per_split) {
  return samples / per_split + (samples % per_split == 0 ? 0 : 1);
}

}  // namespace

absl::StatusOr<SplitQueue> SplitQueue::Create(const Config& config) {
  if (config.train_samples == 0 || config.split_samples == 0 || config.eval_split_samples == 0 ||
      config.data_epochs == 0) {
    return absl::InvalidArgumentError(absl::StrCat("training samples ", config.train_samples,
                                                   ", samples per split ", config.split_samples,
                                                   ", per evaluation split ", config.eval_split_samples,
                                                   ", data epochs ", config.data_epochs, ": none may be 0"));
  }
  const uint64_t per_epoch = Splits(config.train_samples, config.split_samples);
  if (per_epoch > limits::kSplitsMax / config.data_epochs ||
      Splits(config.test_samples, config.eval_split_samples) > limits::kSplitsMax / config.data_epochs) {
    return absl::InvalidArgumentError(absl::StrCat(config.data_epochs, " data epochs of ", per_epoch,
                                                   " splits: allowed are ", limits::kSplitsMax,
                                                   " in all; raise --split-samples"));
  }
  return SplitQueue(config);
}

SplitQueue::SplitQueue(const Config& config) : config_(config) {
  Round round;
  round.states.assign(Splits(config.train_samples, config.split_samples), kFree);
  train_.assign(config.data_epochs, round);
}

std::optional<uint32_t> SplitQueue::TakeFirstFree(Round* round) {
  auto& first = round->first_free;
  while (first < round->states.size() && round->states[first] != kFree) ++first;
  if (first == round->states.size()) return std::nullopt;
  round->states[first] = kTaken;
  return first;
}

Task SplitQueue::MakeTask(LeaseKind kind, uint32_t data_epoch, uint32_t split) const {
  const bool train = kind == LEASE_TRAIN;
  const uint64_t per_split = train ? config_.split_samples : config_.eval_split_samples;
  Task task;
  task.kind = kind;
  task.data_epoch = data_epoch;
  task.split = SplitId(split);
  task.begin = split * per_split;
  task.end = std::min(task.begin + per_split, train ? config_.train_samples : config_.test_samples);
  return task;
}

std::optional<Task> SplitQueue::Next() {
  for (auto& [data_epoch, round] : evals_) {
    const std::optional<uint32_t> split = TakeFirstFree(&round);
    if (split) return MakeTask(LEASE_EVAL, data_epoch, *split);
  }
  for (uint32_t epoch = first_open_epoch_; epoch < train_.size(); ++epoch) {
    const std::optional<uint32_t> split = TakeFirstFree(&train_[epoch]);
    if (split) return MakeTask(LEASE_TRAIN, epoch, *split);
    first_open_epoch_ = epoch + 1;
  }
  return std::nullopt;
}

SplitQueue::Round* SplitQueue::RoundOf(const Task& task) {
  if (task.kind == LEASE_TRAIN) return task.data_epoch < train_.size() ? &train_[task.data_epoch] : nullptr;
  const auto found = evals_.find(task.data_epoch);
  return found == evals_.end() ? nullptr : &found->second;
}

void SplitQueue::Return(const Task& task) {
  Round* round = RoundOf(task);
  uint8_t& state = round->states[task.split.value()];
  if (state != kTaken) return;
  state = kFree;
  round->first_free = std::min(round->first_free, task.split.value());
  if (task.kind == LEASE_TRAIN) first_open_epoch_ = std::min(first_open_epoch_, task.data_epoch);
}

bool SplitQueue::TakeIfFree(const Task& task) {
  uint8_t& state = RoundOf(task)->states[task.split.value()];
  if (state != kFree) return false;
  state = kTaken;
  return true;
}

bool SplitQueue::Complete(const Task& task, const EvalResult& eval) {
  Round* round = RoundOf(task);
  uint8_t& state = round->states[task.split.value()];
  if (state == kDone) return false;
  state = kDone;
  ++round->done;
  if (task.kind == LEASE_EVAL) {
    round->eval.set_samples(round->eval.samples() + eval.samples());
    round->eval.set_correct(round->eval.correct() + eval.correct());
    round->eval.set_loss_sum(round->eval.loss_sum() + eval.loss_sum());
    return true;
  }
  samples_completed_ += task.end - task.begin;
  if (round->complete() && config_.test_samples > 0) {
    evals_[task.data_epoch + 1].states.assign(Splits(config_.test_samples, config_.eval_split_samples),
                                              kFree);
  }
  return true;
}

absl::StatusOr<Task> SplitQueue::Find(LeaseKind kind, uint32_t data_epoch, SplitId split) const {
  Task task;
  task.kind = kind;
  task.data_epoch = data_epoch;
  // A proto3 enum may hold any number.
  const Round* round =
      kind != LEASE_TRAIN && kind != LEASE_EVAL ? nullptr : const_cast<SplitQueue*>(this)->RoundOf(task);
  if (round == nullptr || split.value() >= round->states.size()) {
    return absl::InvalidArgumentError(
        absl::StrCat("no split ", split.value(), " in data epoch ", data_epoch, " (kind ", kind, ")"));
  }
  return MakeTask(kind, data_epoch, split.value());
}

bool SplitQueue::finished() const {
  for (const Round& round : train_) {
    if (!round.complete()) return false;
  }
  for (const auto& [data_epoch, round] : evals_) {
    if (!round.complete()) return false;
  }
  return true;
}

std::optional<EvalResult> SplitQueue::Evaluation(uint32_t data_epochs) const {
  const auto found = evals_.find(data_epochs);
  if (found == evals_.end() || !found->second.complete()) return std::nullopt;
  return found->second.eval;
}

}  // namespace recon
