#include "server/scheduler/split_queue.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "common/base/check.h"
#include "common/base/data_epoch.h"
#include "common/base/limits.h"

namespace recon {
namespace {

uint64_t Splits(uint64_t samples, uint32_t per_split) {
  return samples / per_split + (samples % per_split == 0 ? 0 : 1);
}

void AddMetric(const MetricSum& metric, EvalResult* eval) {
  for (MetricSum& sum : *eval->mutable_metrics()) {
    if (sum.name() != metric.name()) continue;
    sum.set_sum(sum.sum() + metric.sum());
    sum.set_weight(sum.weight() + metric.weight());
    return;
  }
  *eval->add_metrics() = metric;
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
  train_.assign(config.data_epochs, Round(Splits(config.train_samples, config.split_samples)));
}

void SplitQueue::Set(Round* round, uint32_t split, State state) {
  RECON_CHECK_LT(split, round->states.size());
  uint8_t& now = round->states[split];
  RECON_CHECK(now != kDone, "a split that is done changes");
  RECON_CHECK(now != state, "a split is taken, or returned, twice");
  RECON_CHECK(now != kFree || round->free > 0);
  round->free += (state == kFree ? 1 : 0) - (now == kFree ? 1 : 0);
  round->done += state == kDone ? 1 : 0;  // It stays done.
  RECON_CHECK_LE(round->free + round->done, round->states.size());
  now = state;
}

uint32_t SplitQueue::TakeFirstFree(Round* round, uint32_t splits, uint32_t* first) {
  auto& from = round->first_free;
  while (from < round->states.size() && round->states[from] != kFree) ++from;
  *first = from;
  uint32_t taken = 0;
  while (taken < splits && from < round->states.size() && round->states[from] == kFree) {
    Set(round, from++, kTaken);
    ++taken;
  }
  return taken;
}

Task SplitQueue::MakeTask(LeaseKind kind, uint32_t data_epoch, uint32_t split, uint32_t splits) const {
  const bool train = kind == LEASE_TRAIN;
  const uint64_t per_split = train ? config_.split_samples : config_.eval_split_samples;
  Task task;
  task.kind = kind;
  task.data_epoch = data_epoch;
  task.split = SplitId(split);
  task.splits = splits;
  task.begin = split * per_split;
  task.end = std::min(task.begin + splits * per_split, train ? config_.train_samples : config_.test_samples);
  RECON_CHECK_LT(task.begin, task.end);
  return task;
}

uint32_t SplitQueue::FreeAhead(uint32_t data_epoch) const {
  const uint32_t free = train_[data_epoch].free;
  if (free == 0 || data_epoch == 0 || config_.test_samples == 0) return free;
  const auto before = evals_.find(data_epoch);  // After so many passes.
  const bool taken = before != evals_.end() && before->second.free == 0;
  return taken ? free : free - 1;
}

std::optional<Task> SplitQueue::Next(uint32_t splits, bool ahead) {
  uint32_t first = 0;
  for (auto& [data_epoch, round] : evals_) {
    if (TakeFirstFree(&round, 1, &first) > 0) return MakeTask(LEASE_EVAL, data_epoch, first, 1);
  }
  for (uint32_t epoch = first_open_epoch_; epoch < train_.size(); ++epoch) {
    if (config_.passes_in_turn && epoch > 0 && !Complete(epoch - 1)) return std::nullopt;
    const uint32_t wanted = ahead ? std::min(splits, FreeAhead(epoch)) : splits;
    if (wanted == 0 && train_[epoch].free > 0) return std::nullopt;
    const uint32_t taken = TakeFirstFree(&train_[epoch], wanted, &first);
    if (taken > 0) return MakeTask(LEASE_TRAIN, epoch, first, taken);
    first_open_epoch_ = epoch + 1;
  }
  return std::nullopt;
}

bool SplitQueue::Complete(uint32_t data_epoch) const {
  if (!train_[data_epoch].complete()) return false;
  const auto evaluation = evals_.find(data_epoch + 1);
  return evaluation == evals_.end() || evaluation->second.complete();
}

uint32_t SplitQueue::data_epoch() const {
  uint32_t epoch = 0;
  while (epoch < train_.size() && Complete(epoch)) ++epoch;
  return epoch;
}

uint32_t SplitQueue::free_splits() const {
  for (uint32_t epoch = first_open_epoch_; epoch < train_.size(); ++epoch) {
    if (train_[epoch].free > 0) return train_[epoch].free;
  }
  return 0;
}

SplitQueue::Round* SplitQueue::RoundOf(const Task& task) {
  if (task.kind == LEASE_TRAIN) return task.data_epoch < train_.size() ? &train_[task.data_epoch] : nullptr;
  const auto found = evals_.find(task.data_epoch);
  return found == evals_.end() ? nullptr : &found->second;
}

void SplitQueue::Return(const Task& task) {
  Round* round = RoundOf(task);
  RECON_CHECK(round != nullptr, "a task of no pass is returned");
  const uint32_t first = task.split.value();
  for (uint32_t split = first; split < first + task.splits; ++split) {
    if (round->states[split] != kTaken) continue;
    Set(round, split, kFree);
    round->first_free = std::min(round->first_free, split);
    if (task.kind == LEASE_TRAIN) first_open_epoch_ = std::min(first_open_epoch_, task.data_epoch);
  }
}

std::optional<Task> SplitQueue::TakeRest(const Task& task) {
  Round* round = RoundOf(task);
  RECON_CHECK(round != nullptr);
  const uint32_t end = task.split.value() + task.splits;
  RECON_CHECK_LE(end, round->states.size());
  uint32_t first = task.split.value();
  while (first < end && round->states[first] == kDone) ++first;
  if (first == end) return std::nullopt;
  for (uint32_t split = first; split < end; ++split) {
    if (round->states[split] != kFree) return std::nullopt;
  }
  for (uint32_t split = first; split < end; ++split) Set(round, split, kTaken);
  return MakeTask(task.kind, task.data_epoch, first, end - first);
}

bool SplitQueue::Complete(const Task& task, const EvalResult& eval) {
  Round* round = RoundOf(task);
  RECON_CHECK(round != nullptr, "a task of no pass is completed");
  RECON_CHECK_LE(uint64_t{task.split.value()} + task.splits, round->states.size());
  const auto first = round->states.begin() + task.split.value();
  if (std::count(first, first + task.splits, kDone) > 0) return false;
  for (uint32_t i = 0; i < task.splits; ++i) Set(round, task.split.value() + i, kDone);
  if (task.kind == LEASE_EVAL) {
    round->eval.set_samples(round->eval.samples() + eval.samples());
    round->eval.set_correct(round->eval.correct() + eval.correct());
    round->eval.set_loss_sum(round->eval.loss_sum() + eval.loss_sum());
    for (const MetricSum& metric : eval.metrics()) AddMetric(metric, &round->eval);
    return true;
  }
  samples_completed_ += task.end - task.begin;
  RECON_CHECK_LE(samples_completed_, config_.train_samples * config_.data_epochs);
  if (round->complete() && config_.test_samples > 0) {
    const bool is_new =
        evals_.emplace(task.data_epoch + 1, Splits(config_.test_samples, config_.eval_split_samples)).second;
    RECON_CHECK(is_new, "a pass is complete for the second time");
  }
  return true;
}

absl::StatusOr<Task> SplitQueue::Find(LeaseKind kind, uint32_t data_epoch, SplitId split,
                                      uint32_t splits) const {
  Task task;
  task.kind = kind;
  task.data_epoch = data_epoch;
  // A proto3 enum may hold any number.
  const Round* round =
      kind != LEASE_TRAIN && kind != LEASE_EVAL ? nullptr : const_cast<SplitQueue*>(this)->RoundOf(task);
  if (round == nullptr || splits == 0 || split.value() >= round->states.size() ||
      splits > round->states.size() - split.value()) {
    return absl::InvalidArgumentError(
        absl::StrCat("no ", splits, " splits from ", split.value(), " in data epoch ",
                     ShownDataEpoch(data_epoch, kind == LEASE_TRAIN), " (kind ", kind, ")"));
  }
  return MakeTask(kind, data_epoch, split.value(), splits);
}

bool SplitQueue::done(LeaseKind kind, uint32_t data_epoch, SplitId split) const {
  Task task;
  task.kind = kind;
  task.data_epoch = data_epoch;
  const Round* round = const_cast<SplitQueue*>(this)->RoundOf(task);
  return round != nullptr && split.value() < round->states.size() && round->states[split.value()] == kDone;
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
