#include "common/codec/frame.h"

#include <cmath>
#include <cstring>
#include <memory>
#include <string>
#include <utility>

#include "absl/functional/function_ref.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "common/base/check.h"
#include "common/base/hash.h"
#include "common/base/limits.h"
#include "common/base/status_macros.h"
#include "common/codec/codec.h"
#include "common/codec/page_hash.h"

namespace recon {
namespace {

// `head` is header and part table; the checksum field in it becomes 0.
uint64_t HeadChecksum(PooledVector<uint8_t>* head) {
  std::memset(head->data() + offsetof(FrameHeader, checksum), 0, sizeof(uint64_t));
  return Hash64(head->data(), head->size());
}

absl::Status Malformed(absl::string_view field, uint64_t seen, absl::string_view expected) {
  return absl::InvalidArgumentError(absl::StrCat("frame: ", field, " is ", seen, ", expected ", expected));
}

absl::Status CheckHeader(const FrameHeader& header, size_t frame_bytes) {
  if (header.magic != kFrameMagic) {
    return absl::InvalidArgumentError(
        absl::StrFormat("frame: magic is %#x, expected %#x", header.magic, kFrameMagic));
  }
  if (header.version < kFrameVersionMin || header.version > kFrameVersion) {
    return Malformed("format version", header.version, absl::StrCat(kFrameVersionMin, " to ", kFrameVersion));
  }
  if (header.kind < static_cast<uint8_t>(FrameKind::kPull) ||
      header.kind > static_cast<uint8_t>(FrameKind::kState)) {
    return Malformed("kind", header.kind, "1 to 7");
  }
  if (header.reply_codec > static_cast<uint8_t>(CodecId::kBf16)) {
    return Malformed("reply codec", header.reply_codec, "0 to 2");
  }
  if (header.server_parts > header.push_parts) {
    return Malformed("shards on this server", header.server_parts,
                     absl::StrCat(header.push_parts, " at most, as the push has"));
  }
  if (header.part_count == 0 || header.part_count > limits::kFramePartsMax) {
    return Malformed("part count", header.part_count, absl::StrCat("1 to ", limits::kFramePartsMax));
  }
  const uint64_t head_bytes = kFrameHeaderBytes + uint64_t{header.part_count} * kPartHeaderBytes;
  if (head_bytes > frame_bytes || header.payload_bytes != frame_bytes - head_bytes) {
    return Malformed(
        "length", frame_bytes,
        absl::StrCat(head_bytes, " of header and table + ", header.payload_bytes, " of payload"));
  }
  return absl::OkStatus();
}

absl::Status CheckLearningRate(FrameKind kind, const PartHeader& part,
                               absl::FunctionRef<std::string()> name) {
  if (part.has_learning_rate > 1) {
    return Malformed(name() + "learning rate's mark", part.has_learning_rate, "0 or 1");
  }
  const bool push = kind == FrameKind::kPush || kind == FrameKind::kPushPull;
  const bool fits = part.has_learning_rate == 1
                        ? push && part.learning_rate >= 0 && part.learning_rate <= kLearningRateMax
                        : part.learning_rate == 0 && !std::signbit(part.learning_rate);
  if (fits) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat("frame: ", name(), "learning rate is ", part.learning_rate, ", expected ",
                   part.has_learning_rate == 1 && push ? absl::StrCat("0 to ", kLearningRateMax) : "none"));
}

bool MayHaveExponent(const FrameHeader& header, CodecId codec) {
  const auto kind = static_cast<FrameKind>(header.kind);
  return header.version > kFrameVersionMin && (kind == FrameKind::kPush || kind == FrameKind::kPushPull) &&
         (codec == CodecId::kFp16 || codec == CodecId::kSparseFp16);
}

absl::Status CheckPart(const FrameHeader& header, const PartHeader& part, uint32_t index) {
  const auto kind = static_cast<FrameKind>(header.kind);
  const auto name = [&] { return absl::StrCat("part ", index, " (shard ", part.shard, ") "); };
  if (!KnownCodec(part.codec))
    return Malformed(name() + "codec", part.codec, absl::StrCat("0 to ", kCodecIdMax));
  const bool may_have_exponent = MayHaveExponent(header, static_cast<CodecId>(part.codec));
  if (part.exponent != 0 &&
      !(may_have_exponent && part.exponent >= kExponentMin && part.exponent <= kExponentMax)) {
    return absl::InvalidArgumentError(
        absl::StrCat("frame: ", name(), "exponent is ", int{part.exponent}, ", expected ",
                     may_have_exponent ? absl::StrCat(kExponentMin, " to ", kExponentMax)
                                       : "0: a push of version 3 in fp16 or sparse-fp16 may have one"));
  }
  if (part.reserved != 0) return Malformed(name() + "reserved byte", part.reserved, "0");
  RECON_RETURN_IF_ERROR(CheckLearningRate(kind, part, name));
  if (part.payload_bytes != 0 && kind == FrameKind::kPull) {
    if (!IsValueCodec(static_cast<CodecId>(part.codec))) {
      return Malformed(name() + "codec of hashes", part.codec, "0 to 2");
    }
    if (part.payload_bytes != PageHashesBytes(part.count)) {
      return Malformed(name() + "payload bytes", part.payload_bytes,
                       absl::StrCat(PageHashesBytes(part.count), " of hashes, or 0"));
    }
  } else if (part.payload_bytes != 0 && kind == FrameKind::kPullMean) {
    return Malformed(name() + "payload bytes", part.payload_bytes, "0");
  } else if (part.payload_bytes != 0) {
    const absl::Status bytes =
        CheckPayloadBytes(static_cast<CodecId>(part.codec), part.count, part.payload_bytes);
    if (!bytes.ok()) {
      return absl::InvalidArgumentError(
          absl::StrCat("frame: ", name(), "payload bytes is ", bytes.message()));
    }
  }
  return absl::OkStatus();
}

}  // namespace

ByteChain EncodeFrame(Frame frame) {
  RECON_CHECK_EQ(frame.parts.size(), frame.payloads.size());
  FrameHeader& header = frame.header;
  header.magic = kFrameMagic;
  header.version = kFrameVersionMin;
  header.part_count = static_cast<uint32_t>(frame.parts.size());
  header.payload_bytes = 0;
  header.checksum = 0;
  for (size_t i = 0; i < frame.parts.size(); ++i) {
    if (frame.parts[i].exponent != 0) header.version = kFrameVersion;
    frame.parts[i].payload_bytes = static_cast<uint32_t>(frame.payloads[i].size());
    header.payload_bytes += frame.payloads[i].size();
  }
  PooledVector<uint8_t> head(kFrameHeaderBytes + frame.parts.size() * kPartHeaderBytes);
  std::memcpy(head.data(), &header, kFrameHeaderBytes);
  std::memcpy(head.data() + kFrameHeaderBytes, frame.parts.data(), frame.parts.size() * kPartHeaderBytes);
  header.checksum = HeadChecksum(&head);
  std::memcpy(head.data(), &header, kFrameHeaderBytes);
  ByteChain bytes = ByteChain::FromVector(std::move(head));
  for (const ByteChain& payload : frame.payloads) bytes.Append(payload);
  return bytes;
}

absl::StatusOr<Frame> DecodeFrame(const ByteChain& bytes) {
  if (bytes.size() < kFrameHeaderBytes) {
    return Malformed("length", bytes.size(), absl::StrCat("at least ", kFrameHeaderBytes));
  }
  if (bytes.size() > limits::kFrameBytesMax) {
    return Malformed("length", bytes.size(), absl::StrCat("at most ", limits::kFrameBytesMax));
  }
  Frame frame;
  bytes.CopyTo(&frame.header, kFrameHeaderBytes);
  RECON_RETURN_IF_ERROR(CheckHeader(frame.header, bytes.size()));
  const size_t table_bytes = frame.header.part_count * kPartHeaderBytes;
  PooledVector<uint8_t> head(kFrameHeaderBytes + table_bytes);
  bytes.CopyTo(head.data(), head.size());
  const uint64_t checksum = HeadChecksum(&head);
  if (checksum != frame.header.checksum) {
    return absl::InvalidArgumentError(
        absl::StrFormat("frame: checksum is %#x, expected %#x", frame.header.checksum, checksum));
  }
  frame.parts.resize(frame.header.part_count);
  std::memcpy(frame.parts.data(), head.data() + kFrameHeaderBytes, table_bytes);
  uint64_t payload_bytes = 0;
  bool any_exponent = false;
  for (uint32_t i = 0; i < frame.header.part_count; ++i) {
    RECON_RETURN_IF_ERROR(CheckPart(frame.header, frame.parts[i], i));
    any_exponent |= frame.parts[i].exponent != 0;
    payload_bytes += frame.parts[i].payload_bytes;
  }
  if (payload_bytes != frame.header.payload_bytes) {
    return Malformed("payload bytes", frame.header.payload_bytes,
                     absl::StrCat("the parts' sum ", payload_bytes));
  }
  if (!any_exponent && frame.header.version != kFrameVersionMin) {  // A frame has one way to be written.
    return Malformed("format version", frame.header.version,
                     absl::StrCat(kFrameVersionMin, " of a frame without an exponent"));
  }
  size_t at = head.size();
  frame.payloads.reserve(frame.parts.size());
  for (const PartHeader& part : frame.parts) {
    frame.payloads.push_back(bytes.Range(at, part.payload_bytes));
    at += part.payload_bytes;
  }
  return frame;
}

}  // namespace recon
