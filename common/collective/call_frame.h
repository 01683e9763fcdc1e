#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "common/base/byte_chain.h"
#include "common/collective/values.h"

namespace recon {

// What members of a set and servers say to each other about collective calls: a header, a text, and a
// payload, which is tensor bytes or a protobuf message.
//
// A call is cut into chunks; each belongs to one server, which decides it once: everybody who takes part in a
// chunk sends one frame of it, with bytes or without, and gets one outcome, with bytes or without. Nobody has
// a result of a chunk for which another gets an error. COLLECTIVES.md says what follows from that.
enum class CallFrameKind : uint8_t {
  // From members.
  kJoin = 1,       // Payload: JoinRequest. To the head, once.
  kHeartbeat = 2,  // To the head.
  kLeave = 3,      // To the head. Text: why.
  kChunk = 4,      // Text: what is called, the same from all. Payload: the sender's bytes, if it is a source.
  kFailCall = 5,   // A call has failed elsewhere. Text: why.
  kGone = 6,       // `lost` is lost from an epoch, or kEverybody: the epoch is over. Text: why.
  kEnter = 7,      // To other servers, first of all in an epoch. Payload: the ticket of `place` (ticket.h).
  // From servers.
  kEpoch = 16,    // Payload: SetEpoch. From the head.
  kLost = 17,     // Payload: MembersLost. From the head.
  kOutcome = 18,  // Of a chunk. `code` 0: payload for receivers; else text: why it failed.
};

// How what the sources send becomes the result.
enum class Combine : uint8_t { kCopy = 0, kReduce = 1, kConcat = 2 };

inline constexpr uint32_t kEverybody = UINT32_MAX;
inline constexpr uint32_t kNobody = UINT32_MAX - 1;

// Little endian, as it lies in memory. Fields that a kind has no use for are 0.
struct CallHeader {
  CallFrameKind kind = CallFrameKind::kHeartbeat;
  Combine combine = Combine::kCopy;
  ReduceOp op = ReduceOp::kSum;
  DType dtype = DType::kUint8;
  Wire wire = Wire::kSame;
  uint8_t pair = 0;         // 1: source and receiver take part, else all members.
  uint16_t text_bytes = 0;  // Set by EncodeCallFrame().
  uint32_t place = 0;       // The sender's, among the epoch's members.
  uint32_t rank = 0;        // The sender's, for texts.
  uint32_t members = 0;     // Of the epoch; of an outcome: those who count in it.
  uint32_t source = 0;      // A place or kEverybody.
  uint32_t receiver = 0;    // A place or kEverybody.
  uint32_t code = 0;        // Of an outcome: an absl::StatusCode.
  uint32_t lost = kNobody;  // Of an outcome: which place's loss made it fail.
  uint32_t reserved = 0;
  uint64_t set = 0;
  uint64_t epoch = 0;
  uint64_t channel = 0;   // kCollectives, NamedChannel(), or ChannelOf() for point to point.
  uint64_t sequence = 0;  // Of the call, in its channel and epoch.
  uint64_t chunk = 0;     // Of the call.
  uint64_t bytes = 0;     // Of one source's part of this chunk.
  uint64_t total = 0;     // Of one source, over all chunks of the part of the call that this is one of.
};
inline constexpr size_t kCallHeaderBytes = 8 + 8 * 4 + 7 * 8;
static_assert(sizeof(CallHeader) == kCallHeaderBytes);

inline constexpr uint64_t kCollectives = 0;
// Calls that match by a name, whatever comes between them.
uint64_t NamedChannel(absl::string_view name);
// Messages from one rank to another that have a tag; not 0.
uint64_t ChannelOf(uint32_t source, uint32_t receiver, uint32_t tag);

struct CallFrame {
  CallHeader header;
  std::string text;
  ByteChain payload;
};

// The payload is not copied. Texts are cut to limits::kCollectiveTextBytesMax.
ByteChain EncodeCallFrame(const CallFrame& frame);
// InvalidArgument for what is no frame, or one with impossible numbers. Of a text what is no UTF-8 becomes
// '?': texts go into messages to others.
absl::StatusOr<CallFrame> DecodeCallFrame(const ByteChain& bytes);

// Whether a place takes part in a chunk, has bytes for it, gets bytes of it.
bool TakesPart(const CallHeader& chunk, uint32_t place);
bool IsSource(const CallHeader& chunk, uint32_t place);
bool IsReceiver(const CallHeader& chunk, uint32_t place);

// The outcome of a chunk that failed.
CallFrame FailedOutcome(const CallHeader& chunk, const absl::Status& why, uint32_t lost);

}  // namespace recon
