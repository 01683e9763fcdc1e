#pragma once

#include <cstdint>
#include <map>
#include <set>
#include <vector>

#include "absl/types/span.h"
#include "server/sync/step_closing.h"

namespace recon {

// Which synchronous steps are closed for which shards of the model, and which of these closings are in the
// push log yet. Steps are closed shard by shard, so that parameters come back while later gradients are on
// their way.
//
// Pure; not thread-safe.
class ClosedSteps {
 public:
  // Nothing is closed yet.
  void SetShards(uint32_t shards) { first_open_.assign(shards, 0); }
  uint32_t shards() const { return static_cast<uint32_t>(first_open_.size()); }

  // First step of the shard that is not closed, or whose closing is on its way into the log.
  uint64_t first_open(uint32_t shard) const { return first_open_[shard]; }
  // The highest of all shards'; 0 without a model.
  uint64_t first_open_of_any() const;

  // The step is closed for these shards; its record is on its way into the log.
  void Note(const StepClosing& closing);
  // Another server has closed the step for these shards: returns what is new of it, noted. What is in the log
  // may be said again.
  StepClosing NoteNew(const StepClosing& closing);
  // The record of such a closing is in the log. `frontier`: first step that some shard waits for.
  void NoteInLog(uint64_t step, uint64_t frontier);
  // A record of the log that is applied again.
  void NoteReplayed(const StepClosing& closing);
  // `frontier`, or a step before it whose closing is not in the log.
  uint64_t FrontierInLog(uint64_t frontier) const;

  // The log's record `sequence` is the first of a push to this step.
  void NoteFirstPush(uint64_t step, uint64_t sequence) { first_pushes_.try_emplace(step, sequence); }
  void ForgetFirstPushes() { first_pushes_.clear(); }
  // First record of the log with a push to a step from `frontier` on, or `otherwise` if that comes before.
  // Forgets the steps before `frontier`.
  uint64_t FirstRecordFrom(uint64_t frontier, uint64_t otherwise);

  // As a snapshot says for each shard.
  void Restore(std::vector<uint64_t> first_open) { first_open_ = std::move(first_open); }
  // Nobody begins a step before `step` for any shard.
  void CloseBefore(uint64_t step) { first_open_.assign(first_open_.size(), step); }
  // First step that is not closed for all of `shards`, though for some perhaps; 0 without shards. A step
  // closes for no shard before those in front of it have for all: that a shard was closed last long ago only
  // says that few pushes have it.
  uint64_t FrontierOf(absl::Span<const uint32_t> shards) const;

 private:
  void ForgetFirstPushesBefore(uint64_t step);

  std::vector<uint64_t> first_open_;
  std::multiset<uint64_t> closings_not_in_log_;
  std::map<uint64_t, uint64_t> first_pushes_;
};

}  // namespace recon
