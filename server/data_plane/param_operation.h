#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <map>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_set.h"
#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "common/base/pool_allocator.h"
#include "common/codec/frame.h"
#include "server/data_plane/param_server.h"
#include "server/data_plane/reply_buffer.h"

namespace recon {

// One frame from its arrival to its reply.
struct ParamServer::Operation {
  explicit Operation(RequestContext context = {})
      : sender(context.sender), reply_buffer(std::move(context)) {}

  FrameKind kind = FrameKind::kPull;
  WorkerId worker;
  Incarnation incarnation;   // As the frame says.
  const Incarnation sender;  // As its connection has shown; 0: it has not.
  Frame frame;
  ByteChain raw;  // The frame as it came in, until it is in the log.
  const ApplyRules* rules = nullptr;
  uint64_t bytes = 0;
  uint64_t session = 0;  // Session::number of the one whose bytes in flight it is part of.
  absl::Time arrived;
  Taken taken;
  Done done;
  // Workers push this step side by side: it is taken only when it is answered, or has waited for long.
  bool in_step = false;
  bool left_out = false;  // Replayed: its push is to have no effect.

  std::atomic<int> lanes_left{0};  // OnLanes()
  std::atomic<uint32_t> parts_taken{0};

  // Of the parts that were taken and name the version that they were computed from; none may.
  std::atomic<uint64_t> staleness_max{0};
  std::atomic<bool> staleness_known{false};
  // Element i belongs to the lane of part i until lanes_left is 0.
  PooledVector<PartHeader> reply_parts;
  PooledVector<ByteChain> reply_payloads;
  PooledVector<Shard::Outcome> outcomes;
  ReplyBuffer reply_buffer;

  // Under the server's lock: while its reply waits.
  StalenessGate::Ticket ticket = 0;
  absl::Time waiting_since;
  int closings_left = 0;
};

// What staleness is counted in: up to each of these, and more.
inline constexpr std::array<double, 8> kStalenessBounds = {0, 1, 2, 4, 8, 16, 32, 64};

// What has come of a push.
struct ParamServer::Delivery {
  using Shards = absl::flat_hash_set<uint32_t, absl::flat_hash_set<uint32_t>::hasher, std::equal_to<uint32_t>,
                                     PoolAllocator<uint32_t>>;
  Shards shards;
  size_t expected = 0;  // So many, of those that are counted here.
};

// A worker that the coordinator has admitted.
struct ParamServer::Session {
  Incarnation incarnation;
  uint64_t number = 0;  // No other has had it, not of the same process either.
  // No step waits for it, and what it pushes counts in none, until Activate().
  bool parked = false;
  uint64_t first_step = 0;   // That it may push, since it was parked last.
  uint64_t next_pushed = 0;  // Its last push that is complete is of the step before.
  uint64_t late_steps = 0;   // Closed without it, for a quorum was there.
  int late_in_a_row = 0;     // Of those, since a push of it has counted.
  // First step of which nothing has come here.
  uint64_t next_begun = 0;
  // Pushes that are not complete, by step.
  std::map<uint64_t, Delivery, std::less<uint64_t>, PoolAllocator<std::pair<const uint64_t, Delivery>>>
      delivered;

  uint64_t bytes_in_flight = 0;  // Of its frames that are neither applied nor answered.
  uint64_t pushes = 0;
  uint64_t staleness_pushes = 0;  // Those whose staleness is known.
  double staleness_sum = 0;
  uint64_t staleness_max = 0;
  std::array<uint64_t, kStalenessBounds.size() + 1> staleness_counts = {};
  double waiting_seconds = 0;
};

inline void RaiseTo(uint64_t value, std::atomic<uint64_t>* highest) {
  uint64_t seen = highest->load(std::memory_order_relaxed);
  while (seen < value && !highest->compare_exchange_weak(seen, value)) {
  }
}

// What the rules say of a shard, and the model.
inline GroupPolicy PolicyFor(const ApplyRules& rules, const ParamLayout& layout, uint32_t shard) {
  const uint32_t group = layout.shards()[shard].group;
  GroupPolicy policy = rules.PolicyOf(layout.groups()[group]);
  policy.averaged = layout.averaged(group);
  return policy;
}

inline bool CarriesGradient(FrameKind kind) {
  return kind == FrameKind::kPush || kind == FrameKind::kPushPull;
}

// Workers ask where to go on.
inline absl::Status NotInStep(uint64_t step) {
  return absl::AbortedError(absl::StrCat("step ", step, " does not wait for this worker"));
}

// Workers try again until the server has been started anew.
inline absl::Status LogFailed(const absl::Status& status) {
  return absl::UnavailableError(absl::StrCat("the push log has failed: ", status.message()));
}

}  // namespace recon
