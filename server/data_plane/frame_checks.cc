#include "server/data_plane/frame_checks.h"

#include <cmath>

#include "absl/strings/str_cat.h"
#include "common/base/limits.h"
#include "common/codec/codec.h"

namespace recon {

absl::Status CheckContent(const Operation& op, size_t index, uint32_t refused_codecs) {
  const PartHeader& part = op.frame.parts[index];
  if (part.payload_bytes == 0) return absl::OkStatus();  // CheckParts() refuses it, unless it needs none.
  const auto codec = static_cast<CodecId>(part.codec);
  absl::Status status;
  if ((refused_codecs >> part.codec & 1) != 0) {
    status = absl::InvalidArgumentError(
        absl::StrCat("codec ", CodecName(codec), " is not among those the server accepts"));
  } else if ((op.kind == FrameKind::kInit || op.kind == FrameKind::kState) && !IsValueCodec(codec)) {
    status = absl::InvalidArgumentError(
        absl::StrCat("codec ", CodecName(codec), ": initial values and state must be fp32, fp16 or bf16"));
  } else {
    status = CheckPayload(codec, part.count, op.frame.payloads[index]);
  }
  if (status.ok()) return status;
  return absl::InvalidArgumentError(
      absl::StrCat("step ", op.frame.header.step, " shard ", part.shard, ": ", status.message()));
}

absl::Status CheckParts(const Operation& op, const ShardMap& map) {
  uint64_t reply_bytes = kFrameHeaderBytes + op.frame.parts.size() * kPartHeaderBytes;
  for (size_t i = 0; i < op.frame.parts.size(); ++i) {
    const PartHeader& part = op.frame.parts[i];
    if (part.shard >= map.size()) {
      return absl::InvalidArgumentError(
          absl::StrCat("part ", i, ": shard ", part.shard, ", the model has ", map.size()));
    }
    if (i > 0 && part.shard <= op.frame.parts[i - 1].shard) {
      return absl::InvalidArgumentError(absl::StrCat("part ", i, ": shard ", part.shard, " after shard ",
                                                     op.frame.parts[i - 1].shard, ", they must ascend"));
    }
    if (!map.has(part.shard)) {
      return absl::InvalidArgumentError(
          absl::StrCat("part ", i, ": shard ", part.shard, " is not on server ", map.server()));
    }
    const uint32_t params = map.params_of(part.shard);
    if (part.count != params) {
      return absl::InvalidArgumentError(
          absl::StrCat("part ", i, ": ", part.count, " values, shard ", part.shard, " has ", params));
    }
    const bool whole = map.layout()->averaged(map.layout()->shards()[part.shard].group);
    reply_bytes +=
        EncodedBytes(whole ? CodecId::kFp32 : static_cast<CodecId>(op.frame.header.reply_codec), params);
    if (part.payload_bytes == 0 && !Asks(op.kind)) {
      return absl::InvalidArgumentError(
          absl::StrCat("part ", i, ": 0 bytes of payload in a frame of kind ", op.frame.header.kind));
    }
  }
  const bool has_reply = Asks(op.kind) || op.kind == FrameKind::kPushPull;
  if (has_reply && reply_bytes > limits::kFrameBytesMax) {
    return absl::InvalidArgumentError(absl::StrCat("the reply would have ", reply_bytes,
                                                   " bytes, allowed are ", limits::kFrameBytesMax,
                                                   ": ask for fewer shards at a time"));
  }
  return absl::OkStatus();
}

absl::Status CheckPushHeader(const Operation& op, const ShardMap& map) {
  const FrameHeader& header = op.frame.header;
  const size_t parts = op.frame.parts.size();
  if (header.push_parts > map.size() || header.push_parts < parts) {
    return absl::InvalidArgumentError(absl::StrCat("push has ", header.push_parts, " shards, this frame ",
                                                   parts, ", the model ", map.size()));
  }
  const size_t here = PartsHere(header, map);
  if (here > map.owned().size() || here < parts || here > header.push_parts) {
    return absl::InvalidArgumentError(absl::StrCat("push has ", header.push_parts, " shards, ", here,
                                                   " of them on this server, which has ", map.owned().size(),
                                                   ", and this frame has ", parts));
  }
  if (!std::isfinite(header.gradient_norm) || header.gradient_norm < 0) {
    return absl::InvalidArgumentError(absl::StrCat("gradient norm is ", header.gradient_norm));
  }
  if (header.samples == 0) return absl::InvalidArgumentError("push of 0 samples");
  for (const PartHeader& part : op.frame.parts) {
    if (part.version == kNoVersion) {
      return absl::InvalidArgumentError(
          absl::StrCat("shard ", part.shard, ": a push must name the version it was computed from"));
    }
  }
  return absl::OkStatus();
}

size_t PartsHere(const FrameHeader& header, const ShardMap& map) {
  return header.server_parts != 0 ? header.server_parts : map.owned().size();
}

}  // namespace recon
