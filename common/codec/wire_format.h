#pragma once

// The frame that Push, Pull, PushPull, Init, PullMean and State carry, both ways. Plain C++17 without
// libraries, so that .cc and .cu files share it. All numbers are little endian; structs are read and written
// with memcpy because network buffers have no alignment.
//
//   frame   := FrameHeader PartHeader{part_count} payload{part_count}
//   payload := values of `codec`, payload_bytes long, in the order of the parts
//
// FrameHeader.checksum is XXH3-64 over header (with checksum = 0) and part table; payloads are
// protected by the transport.

#include <cstddef>
#include <cstdint>

namespace recon {

static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "the wire format is little endian");

inline constexpr uint32_t kFrameMagic = 0x464E4352;  // "RCNF"
// Version 3 has parts with an exponent. A frame without one is written as version 2, which older programs
// read.
inline constexpr uint16_t kFrameVersion = 3;
inline constexpr uint16_t kFrameVersionMin = 2;

enum class FrameKind : uint8_t {
  kPull = 1,
  kPush = 2,
  kPushPull = 3,
  kInit = 4,
  kReply = 5,
  kPullMean = 6,
  kState = 7
};

// How the values of a payload are encoded; FORMAT.md has the grammar. The numbers are on the wire: never
// reuse one.
enum class CodecId : uint8_t {
  kFp32 = 0,
  kFp16 = 1,
  kBf16 = 2,
  kInt8 = 3,
  kSparseFp32 = 4,
  kSparseFp16 = 5,
  kSparseBf16 = 6,
};
inline constexpr uint8_t kCodecIdMax = 6;

// How a page of a sparse payload says which of its values follow.
enum class IndexCoding : uint8_t {
  kAll = 0,     // Every one: no index bytes.
  kList = 1,    // 16-bit indices, ascending.
  kBitmap = 2,  // One bit a value, lowest bit first, padded to bytes.
  kDelta = 3,   // LEB128: the first index, then each gap to the one before, less 1.
};

// One a page, before the pages' bodies.
struct SparsePageHeader {
  uint32_t coding_and_entries = 0;  // IndexCoding << 24 | number of values.
  uint32_t index_bytes = 0;
};
inline constexpr size_t kSparsePageHeaderBytes = 4 + 4;
static_assert(sizeof(SparsePageHeader) == kSparsePageHeaderBytes);

inline constexpr double kLearningRateMax = 1e6;

// PartHeader.exponent, so that every value of FP16 times 2^exponent is a value of FP32.
inline constexpr int kExponentMin = -125;
inline constexpr int kExponentMax = 112;

// A version no shard has: "send me the pages whatever you have".
inline constexpr uint64_t kNoVersion = ~uint64_t{0};

struct FrameHeader {
  uint32_t magic = kFrameMagic;
  uint16_t version = kFrameVersion;
  uint8_t kind = 0;  // FrameKind.
  // CodecId that the reply's parameters shall have. Averaged ones come in fp32 all the same.
  uint8_t reply_codec = 0;
  uint32_t part_count = 0;
  uint32_t worker = 0;
  uint64_t cluster_epoch = 0;
  uint64_t incarnation = 0;
  uint64_t step = 0;
  // First sample of the batch: fixes the order in which gradients of one step are summed, whoever
  // computed them. Of a worker's state: the number of the upload.
  uint64_t order_key = 0;
  // Samples in the batch: the gradient's weight in a mean. Of a reply with a mean: how many pushes it is of,
  // 0 where that is unknown.
  uint32_t samples = 0;
  float gradient_norm = 0;     // L2 norm of the whole push before encoding, for clipping.
  uint32_t push_parts = 0;     // Shards in the whole push, over all its frames.
  uint32_t server_parts = 0;   // Those of them on this server; 0 where they are all that it has.
  uint64_t payload_bytes = 0;  // Sum over the parts.
  uint64_t checksum = 0;
};
inline constexpr size_t kFrameHeaderBytes = 4 + 2 + 1 + 1 + 4 + 4 + 4 * 8 + 4 * 4 + 2 * 8;
static_assert(sizeof(FrameHeader) == kFrameHeaderBytes && kFrameHeaderBytes == 80);

struct PartHeader {
  uint32_t shard = 0;
  uint8_t codec = 0;              // CodecId.
  uint8_t has_learning_rate = 0;  // 1: the update goes by the rate below; 0: by the server's schedule.
  // The values of a push in fp16 or sparse-fp16 are those of the payload times 2^exponent. All other parts
  // have 0.
  int8_t exponent = 0;
  uint8_t reserved = 0;
  uint32_t count = 0;  // Parameters of the shard.
  // Of a Pull: 0, or hashes of what its sender has (common/codec/page_hash.h). 0 in a reply if the asker has
  // this version already, or values of these hashes.
  uint32_t payload_bytes = 0;
  // Requests: the version of the shard that the worker has, kNoVersion for none (the gradient was
  // computed from it). Replies: the shard's version.
  uint64_t version = kNoVersion;
  // Of a push of gradients: the whole learning rate, the worker's schedule and the group's scale included. A
  // synchronous step takes that of its first contribution in the order of the sum. Else 0.
  double learning_rate = 0;
};
inline constexpr size_t kPartHeaderBytes = 4 + 1 + 1 + 2 + 4 + 4 + 8 + 8;
static_assert(sizeof(PartHeader) == kPartHeaderBytes && kPartHeaderBytes == 32);

}  // namespace recon
