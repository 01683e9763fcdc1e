#include "common/collective/call_frame.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/hash.h"
#include "common/base/limits.h"
#include "common/base/status_macros.h"
#include "common/base/utf8.h"

namespace recon {
namespace {

// Of what a place says in an epoch.
absl::Status CheckPlaces(const CallHeader& header) {
  const auto wrong = [](const auto&... what) {
    return absl::InvalidArgumentError(absl::StrCat("a frame of an epoch: ", what...));
  };
  if (header.members == 0 || header.members > limits::kCollectiveMembersMax) {
    return wrong(header.members, " members, expected 1 to ", limits::kCollectiveMembersMax);
  }
  if (header.place >= header.members)
    return wrong("place ", header.place, " of ", header.members, " members");
  if (header.kind == CallFrameKind::kGone && header.lost != kEverybody && header.lost >= header.members) {
    return wrong("place ", header.lost, " of ", header.members, " members is lost");
  }
  return absl::OkStatus();
}

absl::Status CheckChunk(const CallHeader& header, size_t payload) {
  const auto wrong = [](const auto&... what) {
    return absl::InvalidArgumentError(absl::StrCat("chunk: ", what...));
  };
  const auto is_place = [&](uint32_t place) { return place == kEverybody || place < header.members; };
  if (!is_place(header.source) || !is_place(header.receiver)) {
    return wrong("source ", header.source, " and receiver ", header.receiver, " of ", header.members,
                 " members");
  }
  if (header.combine > Combine::kConcat || header.op > ReduceOp::kProduct || header.dtype > DType::kBool ||
      header.wire > Wire::kInt8 || header.pair > 1) {
    return wrong("an unknown operation or type");
  }
  if ((header.combine == Combine::kCopy) != (header.source != kEverybody)) {
    return wrong(header.combine == Combine::kCopy ? "a copy of everybody's bytes"
                                                  : "one member's bytes, to be combined");
  }
  if (header.combine != Combine::kCopy && header.pair != 0) return wrong("a pair's bytes, to be combined");
  if (header.bytes > limits::kCollectiveChunkBytesMax) {
    return wrong(header.bytes, " bytes, at most ", limits::kCollectiveChunkBytesMax);
  }
  if (header.combine == Combine::kConcat &&
      header.bytes * header.members > limits::kCollectiveChunkBytesMax) {
    return wrong(header.members, " times ", header.bytes, " bytes, together at most ",
                 limits::kCollectiveChunkBytesMax);
  }
  if (header.combine == Combine::kReduce) {
    RECON_RETURN_IF_ERROR(CheckReduction(header.op, header.dtype, header.wire));
    if (!ValuesOnWire(header.dtype, header.wire, header.bytes)) {
      return wrong(header.bytes, " bytes are no number of values of ", DTypeName(header.dtype),
                   header.wire == Wire::kSame ? "" : " as ", WireName(header.wire));
    }
  }
  if (!TakesPart(header, header.place)) return wrong("place ", header.place, " takes no part in it");
  const uint64_t expected = IsSource(header, header.place) ? header.bytes : 0;
  if (payload != expected) return wrong(payload, " bytes came, expected ", expected);
  return absl::OkStatus();
}

}  // namespace

uint64_t NamedChannel(absl::string_view name) {
  return (uint64_t{1} << 62) | (Hash64(name.data(), name.size()) >> 2);
}

uint64_t ChannelOf(uint32_t source, uint32_t receiver, uint32_t tag) {
  return (uint64_t{1} << 63) | (uint64_t{source} << 47) | (uint64_t{receiver} << 32) | tag;
}

ByteChain EncodeCallFrame(const CallFrame& frame) {
  CallHeader header = frame.header;
  header.text_bytes = static_cast<uint16_t>(std::min(frame.text.size(), limits::kCollectiveTextBytesMax));
  std::string head(kCallHeaderBytes + header.text_bytes, '\0');
  std::memcpy(head.data(), &header, kCallHeaderBytes);
  std::memcpy(head.data() + kCallHeaderBytes, frame.text.data(), header.text_bytes);
  ByteChain bytes = ByteChain::FromString(std::move(head));
  bytes.Append(frame.payload);
  return bytes;
}

absl::StatusOr<CallFrame> DecodeCallFrame(const ByteChain& bytes) {
  if (bytes.size() < kCallHeaderBytes) {
    return absl::InvalidArgumentError(
        absl::StrCat("a collective's frame of ", bytes.size(), " bytes, at least ", kCallHeaderBytes));
  }
  CallFrame frame;
  uint8_t raw[kCallHeaderBytes];
  bytes.CopyTo(raw, kCallHeaderBytes);
  std::memcpy(static_cast<void*>(&frame.header), raw, kCallHeaderBytes);
  const size_t text = frame.header.text_bytes;
  if (text > limits::kCollectiveTextBytesMax || text > bytes.size() - kCallHeaderBytes) {
    return absl::InvalidArgumentError(
        absl::StrCat("a collective's frame of ", bytes.size(), " bytes has a text of ", text));
  }
  frame.text = ValidUtf8(bytes.Range(kCallHeaderBytes, text).ToString());
  frame.payload = bytes.Range(kCallHeaderBytes + text, bytes.size() - kCallHeaderBytes - text);
  const CallFrameKind kind = frame.header.kind;
  if (kind == CallFrameKind::kChunk || kind == CallFrameKind::kFailCall || kind == CallFrameKind::kGone ||
      kind == CallFrameKind::kEnter) {
    RECON_RETURN_IF_ERROR(CheckPlaces(frame.header));
  }
  if (kind == CallFrameKind::kChunk) {
    RECON_RETURN_IF_ERROR(CheckChunk(frame.header, frame.payload.size()));
  }
  return frame;
}

bool TakesPart(const CallHeader& chunk, uint32_t place) {
  return chunk.pair == 0 || place == chunk.source || place == chunk.receiver;
}
bool IsSource(const CallHeader& chunk, uint32_t place) {
  return chunk.source == kEverybody || chunk.source == place;
}
bool IsReceiver(const CallHeader& chunk, uint32_t place) {
  if (chunk.receiver != kEverybody) return chunk.receiver == place;
  // What is copied to everybody its source has.
  return chunk.combine != Combine::kCopy || chunk.source != place;
}

CallFrame FailedOutcome(const CallHeader& chunk, const absl::Status& why, uint32_t lost) {
  CallFrame frame{chunk, std::string(why.message()), {}};
  frame.header.kind = CallFrameKind::kOutcome;
  frame.header.code = static_cast<uint32_t>(why.code());
  frame.header.lost = lost;
  return frame;
}

}  // namespace recon
