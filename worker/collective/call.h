#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "common/collective/call_frame.h"
#include "proto/collective.pb.h"

namespace recon {

enum class CallKind : uint8_t {
  kAllReduce,
  kReduce,
  kBroadcast,
  kAllGather,
  kReduceScatter,
  kGather,
  kScatter,
  kAllToAll,
  kBarrier,
  kExchange,  // All get what each has, of equal sizes, in one chunk: for sizes and the like.
  kSend,
  kReceive,
};
const char* CallKindName(CallKind kind);

// A collective as its caller asks for it. The memory must stay until the call is done, and `out` is undefined
// until then and after an error. Counts are of values; ranks are those of the set.
struct CallSpec {
  CallKind kind = CallKind::kBarrier;
  ReduceOp op = ReduceOp::kSum;
  DType dtype = DType::kUint8;
  Wire wire = Wire::kSame;
  std::string name;  // Empty, or the same at all members.
  // Others of its set may come in another order at each member: calls of one name match, and of those without
  // a name calls of one kind. For all but messages, which have tags.
  bool by_name = false;
  // With by_name: calls of one order come in it at all members, whatever their names, and share one's window.
  std::string order;
  std::string shape;  // For texts: of what must be of one shape everywhere.
  const uint8_t* in = nullptr;
  uint8_t* out = nullptr;                       // May be `in`.
  uint64_t count = 0;                           // Where all have as many.
  std::vector<uint64_t> in_counts, out_counts;  // By place, where they differ: to and from each.
  uint32_t peer = 0;                            // The root; the other end of a send or receive.
  uint32_t tag = 0;
};

// One run of values of a call that goes the same way, cut into chunks.
struct Segment {
  CallHeader header;  // Without bytes, chunk and the call's number.
  uint64_t first_chunk = 0;
  uint64_t values = 0, chunk_values = 0, chunks = 1;
  const uint8_t* in = nullptr;  // Null if this member has nothing to send.
  uint8_t* out = nullptr;       // Null if it gets nothing.
};

// A call cut into chunks for one epoch.
struct CallPlan {
  uint64_t channel = kCollectives;
  std::string text;
  std::vector<Segment> segments;
  // One chunk of each segment in turn, instead of segment after segment: where each is sent by another
  // member, or goes to another, all links are used at once.
  bool in_turn = false;
};

// For the member at `epoch.place()`; `servers` share the chunks. Also copies what stays with this member.
// InvalidArgument with the numbers if sizes, peers or operation cannot be.
absl::StatusOr<CallPlan> PlanCall(const CallSpec& spec, const SetEpoch& epoch, size_t servers);

// Which server decides a chunk: the first one of a call is the head's, so that calls that differ meet there.
size_t ServerOf(uint64_t chunk, size_t servers);

// Whether a call means the same when members are missing: a reduction for all, a barrier, a broadcast.
bool CanShrink(const CallSpec& spec);

// Whether its name alone says which call of others it is.
bool HasChannelOfItsName(const CallSpec& spec);
// Whether members may disagree on how a call ended, as each pair of them is on its own.
bool EndsByPairs(CallKind kind);

}  // namespace recon
