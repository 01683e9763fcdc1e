#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/functional/any_invocable.h"
#include "absl/status/statusor.h"
#include "common/base/lane_pool.h"
#include "common/base/mutex.h"
#include "common/codec/frame.h"
#include "common/snapshot/snapshot_reader.h"
#include "server/data_plane/operation.h"
#include "server/data_plane/param_stats.h"
#include "server/data_plane/shard_map.h"
#include "server/store/shard.h"

namespace recon {

// How many of its last versions a shard keeps by these rules, on a server with so many pages: for gradients
// that are compared with them, or, with the optimizer `mean`, for workers that are late for a mean.
uint64_t VersionsKept(uint64_t pages, const ApplyRules& rules);

// A consistent cut of the whole state: of every frame and step closing it has all or nothing.
struct StateCut {
  uint64_t sequence = 0;
  uint64_t frontier_step = 0;
  // First record of the log that is needed beside it.
  uint64_t log_from = 1;
  // As ParamServer::LogPosition has it.
  double replay_seconds = 0;
  // Bytes of the memory that the state, and replies that workers have not taken yet, leave.
  uint64_t memory_left = 0;
  std::vector<ShardCut> shards;
  // Pages that pushes may come to keep besides, of versions that gradients are compared with.
  uint64_t pages_of_versions = 0;
};

// Who goes on with an operation when all of its parts have been through their lanes: a method of an object
// that lives longer. Runs on the lane that was the last.
class NextStep {
 public:
  template <auto kMethod, typename Object>
  static NextStep To(Object* object) {
    return {object, [](void* self, const OperationPtr& op) { (static_cast<Object*>(self)->*kMethod)(op); }};
  }
  void operator()(const OperationPtr& op) const { run_(object_, op); }

 private:
  using Run = void (*)(void* object, const OperationPtr& op);
  NextStep(void* object, Run run) : object_(object), run_(run) {}

  void* object_;
  Run run_;
};

// The shards that a server has, and the lanes that alone touch them. What is posted to a lane runs in the
// order in which it was: whoever posts to several under one lock gives all of them one order.
//
// Threads: Define() comes before everything else and happens once; then any. Shutdown: the destructor runs
// what was posted, which must not refer to what has gone before it.
class ShardSet {
 public:
  // `threads` apply. The job has so many servers; a parameter has `state_planes` values beside it.
  ShardSet(uint32_t servers, int threads, int state_planes);

  // Makes the shards; values are undefined until they are restored or loaded. ResourceExhausted, with nothing
  // changed, if memory for `planes` values a parameter cannot be had.
  absl::Status Define(ShardMap map, const ApplyRules& rules, uint64_t planes);
  // The model's; without one until Define().
  const ShardMap& map() const { return map_; }
  // Calls `task` on the lane of the shard, behind all that is posted there until it runs. There may be no
  // model.
  void PostBehind(uint32_t shard, Lane::Task task);

  // Gives each part of a push, or of initial values, to its shard, then encodes the reply as far as it has to
  // wait for nobody; then `next`.
  void Apply(const OperationPtr& op, NextStep next);
  // Encodes the reply of each part, behind all that was posted; then `next`.
  void EncodeReply(const OperationPtr& op, NextStep next);
  // Makes one update of what the contributors sent for the step.
  void Close(const StepClosing& closing);
  // State that was staged for these shards takes the place of what they have, as this version.
  void CommitStaged(const std::set<uint32_t>& shards, uint64_t version);
  // Pages by shard, of those here that hold workers' state, as the snapshot has them. Blocks.
  using StatePages = std::map<uint32_t, std::vector<PageRef>>;
  absl::StatusOr<StatePages> ReadState(const SnapshotReader& reader, const Manifest& manifest);
  void ReplaceState(StatePages state, uint64_t version);

  // What is posted from now on goes by `rules`.
  void SetRules(const ApplyRulesPtr& rules);
  // See Shard's methods of these names.
  void HideVersions();
  void DropContributions();
  // A rollback: records go on by another history. Steps before `first_step`, if it is not 0, are closed.
  void BeginHistory(uint64_t first_step);

  // Fills in `cut.shards` with what the shards are behind all that was posted, and calls `done` on a lane.
  // `hide`: HideVersions() first.
  void Cut(StateCut cut, bool hide, absl::AnyInvocable<void(StateCut)> done);
  // As ParamServer's methods of these names. Blocks.
  absl::Status Restore(const SnapshotReader& reader, const Manifest& manifest);
  absl::Status LoadInitialValues(
      const std::function<absl::StatusOr<std::vector<PageRef>>(uint32_t shard)>& pages_of);

  // The first update after which a parameter was seen not to be finite. Looked at are updates of large
  // gradients, and every so-many-th.
  std::optional<NonFiniteUpdate> non_finite() const;
  // The first that were seen for some steps in a row.
  std::optional<UnlikeRates> unlike_rates() const;

  // Parameters that were cut in replies in 16 bits since the last call.
  uint64_t TakeCutValues() {
    if (cut_values_.load(std::memory_order_relaxed) == 0) return 0;
    return cut_values_.exchange(0, std::memory_order_relaxed);
  }

  // Of the shard that had most.
  uint64_t updates() const { return updates_.load(std::memory_order_relaxed); }
  // Of all lanes for updates, divided among those that can work at once.
  double apply_seconds() const;

 private:
  using PartStep = void (ShardSet::*)(Operation* op, size_t part);

  // A frame has neighbouring shards, and most frames are one lane's: it wakes no other one, and sends the
  // reply with what it has in its caches. (AssignShards() gives equal shards to the servers in turn.)
  uint32_t LaneKey(uint32_t shard) const { return shard / servers_ / shards_in_a_row_; }
  // Takes `step` for each part on its shard's lane, one task a lane, then `next`.
  void OnLanes(const OperationPtr& op, PartStep step, bool applies, NextStep next);
  void ApplyPart(Operation* op, size_t part);
  void ApplyGradient(Operation* op, size_t part, EncodedGradient gradient);
  void EncodePart(Operation* op, size_t part);
  void EncodeMean(Operation* op, size_t part);
  void Stage(uint32_t shard, const EncodedGradient& values);
  // On the shard's lane.
  void CloseShard(uint32_t number, uint64_t step, const std::set<Contributor>& contributors);
  // On the shard's lane, after an update; `norm`: of the gradient.
  void LookWhetherFinite(const Shard& shard, WorkerId worker, uint64_t step, float norm);
  // On the shard's lane, after it was encoded: counts what was cut since it had cut `before`, and says so
  // once.
  void NoteCutValues(const Shard& shard, uint64_t before);
  void ForEach(const std::function<void(Shard*)>& step);
  // Calls `load` for each of this server's shards, on many threads; says in the log how far it has come with
  // `what`.
  absl::Status LoadAll(const std::string& what, const std::function<absl::Status(uint32_t shard)>& load);

  const uint32_t servers_;
  const int threads_;
  const int state_planes_;

  // Set by Define(). The shards themselves are lane only; null where another server has the shard.
  ShardMap map_;
  uint32_t shards_in_a_row_ = 1;  // On one lane.
  std::vector<std::unique_ptr<Shard>> shards_;
  // Of each shard, on its lane: state that has come and is not committed.
  std::vector<std::vector<PageRef>> staged_;
  mutable Mutex found_mu_;  // A leaf.
  std::optional<NonFiniteUpdate> non_finite_ ABSL_GUARDED_BY(found_mu_);
  std::optional<UnlikeRates> unlike_rates_ ABSL_GUARDED_BY(found_mu_);
  std::atomic<bool> found_non_finite_{false};  // Nothing is looked at any more.
  std::atomic<uint64_t> apply_nanos_{0};
  std::atomic<uint64_t> updates_{0};
  std::atomic<uint64_t> cut_values_{0};
  std::atomic<bool> said_cut_values_{false};

  // Last: its destructor runs what is queued while the rest still exists.
  LanePool lanes_;
};

}  // namespace recon
