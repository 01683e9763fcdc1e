#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <utility>

#include "absl/functional/any_invocable.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "common/base/byte_chain.h"
#include "common/base/check.h"
#include "common/base/ids.h"
#include "common/base/pool_allocator.h"
#include "common/codec/frame.h"
#include "common/optim/apply_rules.h"
#include "common/transport/transport.h"
#include "server/data_plane/reply_buffer.h"
#include "server/sync/reply_queue.h"
#include "server/sync/step_closing.h"

namespace recon {

using ApplyRulesPtr = std::shared_ptr<const ApplyRules>;

inline bool CarriesGradient(FrameKind kind) {
  return kind == FrameKind::kPush || kind == FrameKind::kPushPull;
}

// It asks for values and brings none.
inline bool Asks(FrameKind kind) { return kind == FrameKind::kPull || kind == FrameKind::kPullMean; }

// One frame from its arrival to its reply: it is checked, gets its place in the order of the log, is
// delivered to its shards' lanes, may wait for other workers, and is answered. Replayed ones come from the
// log and have no reply.
struct Operation {
  explicit Operation(RequestContext context = {})
      : sender(context.sender), reply_buffer(std::move(context)) {}

  // Where it is on its way: forward only. What needs no log, waits for nobody, or is refused leaves some out.
  enum class Stage { kArrived, kLogging, kOnLanes, kDelivered, kWaiting, kAnswering, kDone };
  void Enter(Stage next) {
    RECON_CHECK_LT(static_cast<int>(stage), static_cast<int>(next), "an operation goes back");
    RECON_CHECK(next != Stage::kWaiting || stage == Stage::kDelivered);
    stage = next;
  }

  Stage stage = Stage::kArrived;
  FrameKind kind = FrameKind::kPull;
  WorkerId worker;
  Incarnation incarnation;   // As the frame says.
  const Incarnation sender;  // As its connection has shown; 0: it has not.
  Frame frame;
  ByteChain raw;                  // The frame as it came in, until it is in the log.
  PooledVector<uint32_t> shards;  // Of its parts, in their order.
  ApplyRulesPtr rules;            // By which it is applied, once it has its place.
  uint64_t bytes = 0;
  uint64_t account = 0;  // Of MemoryBudget, that `bytes` are held for.
  absl::Time arrived;
  absl::AnyInvocable<void()> taken;
  absl::AnyInvocable<void(absl::StatusOr<ByteChain> reply)> done;
  // Workers push this step side by side: `taken` runs only when it is answered, or has waited for long.
  bool in_step = false;
  bool left_out = false;  // Replayed: its push is to have no effect.

  std::atomic<int> lanes_left{0};  // That have not been through their parts.
  std::atomic<uint32_t> parts_taken{0};
  // The reply has the mean of so many pushes; 0: it has no mean, or one of an unknown number.
  std::atomic<uint32_t> mean_pushes{0};

  // Of the parts that were taken and name the version that they were computed from; none may.
  std::atomic<uint64_t> staleness_max{0};
  std::atomic<bool> staleness_known{false};
  // Element i belongs to the lane of part i until lanes_left is 0.
  PooledVector<PartHeader> reply_parts;
  PooledVector<ByteChain> reply_payloads;
  PooledVector<PushOutcome> outcomes;
  ReplyBuffer reply_buffer;

  // Of WaitingReplies, while its reply waits.
  ReplyQueue::Ticket ticket = 0;
  absl::Time waiting_since;
  int closings_left = 0;
};
using OperationPtr = std::shared_ptr<Operation>;
using Operations = PooledVector<OperationPtr>;

}  // namespace recon
