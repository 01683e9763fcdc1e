#include "server/sync/closed_steps.h"

#include <algorithm>

#include "common/base/check.h"

namespace recon {

uint64_t ClosedSteps::first_open_of_any() const {
  return first_open_.empty() ? 0 : *std::max_element(first_open_.begin(), first_open_.end());
}

void ClosedSteps::NoteReplayed(const StepClosing& closing) {
  for (const uint32_t shard : closing.shards) {
    RECON_CHECK_LT(shard, first_open_.size());
    first_open_[shard] = std::max(first_open_[shard], closing.step + 1);
  }
}

void ClosedSteps::Note(const StepClosing& closing) {
  NoteReplayed(closing);
  closings_not_in_log_.insert(closing.step);
}

StepClosing ClosedSteps::NoteNew(const StepClosing& closing) {
  StepClosing fresh = closing;
  fresh.shards.clear();
  for (const uint32_t shard : closing.shards) {
    if (closing.step >= first_open_[shard]) fresh.shards.push_back(shard);
  }
  if (!fresh.shards.empty()) Note(fresh);
  return fresh;
}

void ClosedSteps::NoteInLog(uint64_t step, uint64_t frontier) {
  const auto noted = closings_not_in_log_.find(step);
  RECON_CHECK(noted != closings_not_in_log_.end(), "a closing is in the log that nobody has noted");
  closings_not_in_log_.erase(noted);
  ForgetFirstPushesBefore(FrontierInLog(frontier));
}

void ClosedSteps::ForgetFirstPushesBefore(uint64_t step) {
  first_pushes_.erase(first_pushes_.begin(), first_pushes_.lower_bound(step));
}

uint64_t ClosedSteps::FrontierInLog(uint64_t frontier) const {
  return closings_not_in_log_.empty() ? frontier : std::min(frontier, *closings_not_in_log_.begin());
}

uint64_t ClosedSteps::FirstRecordFrom(uint64_t frontier, uint64_t otherwise) {
  ForgetFirstPushesBefore(frontier);
  uint64_t first = otherwise;
  for (const auto& [step, sequence] : first_pushes_) first = std::min(first, sequence);
  return first;
}

uint64_t ClosedSteps::FrontierOf(absl::Span<const uint32_t> shards) const {
  if (shards.empty()) return 0;
  uint64_t closed = UINT64_MAX;
  uint64_t begun = 0;
  for (const uint32_t shard : shards) {
    closed = std::min(closed, first_open_[shard]);
    begun = std::max(begun, first_open_[shard]);
  }
  return std::max(closed, begun - std::min<uint64_t>(begun, 1));
}

}  // namespace recon
