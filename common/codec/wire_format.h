#pragma once

// The frame that Push, Pull, PushPull and Init carry, both ways. Plain C++17 without libraries, so
// that .cc and .cu files share it. All numbers are little endian; structs are read and written with
// memcpy because network buffers have no alignment.
//
//   frame   := FrameHeader PartHeader{part_count} payload{part_count}
//   payload := `count` values of `codec`, payload_bytes long, in the order of the parts
//
// FrameHeader.checksum is XXH3-64 over header (with checksum = 0) and part table; payloads are
// protected by the transport.

#include <cstddef>
#include <cstdint>

namespace recon {

static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "the wire format is little endian");

inline constexpr uint32_t kFrameMagic = 0x464E4352;  // "RCNF"
inline constexpr uint16_t kFrameVersion = 1;

enum class FrameKind : uint8_t { kPull = 1, kPush = 2, kPushPull = 3, kInit = 4, kReply = 5 };

// How the values of a payload are encoded. The numbers are on the wire: never reuse one.
enum class CodecId : uint8_t { kFp32 = 0, kFp16 = 1, kBf16 = 2 };

// A version no shard has: "send me the pages whatever you have".
inline constexpr uint64_t kNoVersion = ~uint64_t{0};

struct FrameHeader {
  uint32_t magic = kFrameMagic;
  uint16_t version = kFrameVersion;
  uint8_t kind = 0;         // FrameKind.
  uint8_t reply_codec = 0;  // CodecId that the reply's parameters shall have.
  uint32_t part_count = 0;
  uint32_t worker = 0;
  uint64_t cluster_epoch = 0;
  uint64_t incarnation = 0;
  uint64_t step = 0;
  // First sample of the batch: fixes the order in which gradients of one step are summed, whoever
  // computed them.
  uint64_t order_key = 0;
  uint32_t samples = 0;        // Samples in the batch: the gradient's weight in a mean.
  float gradient_norm = 0;     // L2 norm of the whole push before encoding, for clipping.
  uint32_t push_parts = 0;     // Shards in the whole push, over all its frames.
  uint32_t reserved = 0;       // 0.
  uint64_t payload_bytes = 0;  // Sum over the parts.
  uint64_t checksum = 0;
};
inline constexpr size_t kFrameHeaderBytes = 4 + 2 + 1 + 1 + 4 + 4 + 4 * 8 + 4 * 4 + 2 * 8;
static_assert(sizeof(FrameHeader) == kFrameHeaderBytes && kFrameHeaderBytes == 80);

struct PartHeader {
  uint32_t shard = 0;
  uint8_t codec = 0;  // CodecId.
  uint8_t reserved[3] = {0, 0, 0};
  uint32_t count = 0;          // Parameters of the shard.
  uint32_t payload_bytes = 0;  // 0 in a Pull, and in a reply if the asker has this version already.
  // Requests: the version of the shard that the worker has, kNoVersion for none (the gradient was
  // computed from it). Replies: the shard's version.
  uint64_t version = kNoVersion;
};
inline constexpr size_t kPartHeaderBytes = 4 + 1 + 3 + 4 + 4 + 8;
static_assert(sizeof(PartHeader) == kPartHeaderBytes && kPartHeaderBytes == 24);

}  // namespace recon
