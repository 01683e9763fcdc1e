#include "worker/comm/frames.h"

#include <algorithm>
#include <map>
#include <utility>

#include "common/base/check.h"
#include "common/tensor/shard_assignment.h"
#include "common/transport/send_window.h"

namespace recon {

std::vector<Frame> FramesFor(const ParamLayout& layout, const FrameHeader& header,
                             const WorkerIdentity& identity, const std::vector<EncodedShard>& shards,
                             const std::vector<uint32_t>& server_of_shard) {
  RECON_CHECK_EQ(shards.size(), layout.shard_count());
  RECON_CHECK_EQ(server_of_shard.size(), layout.shard_count());
  struct Filling {
    Frame frame;
    uint64_t bytes = 0;
  };
  std::map<uint32_t, Filling> filling;  // By server.
  std::map<uint32_t, uint32_t> parts_of;
  uint32_t parts = 0;
  for (uint32_t i = 0; i < shards.size(); ++i) {
    if (shards[i].left_out) continue;
    ++parts;
    ++parts_of[server_of_shard[i]];
  }
  const auto last_server = std::max_element(server_of_shard.begin(), server_of_shard.end());
  const uint64_t frame_bytes = FrameBytesFor(last_server == server_of_shard.end() ? 1 : *last_server + 1);
  std::vector<Frame> frames;
  for (uint32_t i = 0; i < shards.size(); ++i) {
    if (shards[i].left_out) continue;
    const uint32_t count = layout.shards()[i].size;
    const bool whole = layout.averaged(layout.shards()[i].group);
    const CodecId reply_codec = whole ? CodecId::kFp32 : static_cast<CodecId>(header.reply_codec);
    // A pull's or a sparse push's frame is small, but its reply may have all values of its shards.
    const uint64_t size = std::max<uint64_t>(shards[i].payload.size(), EncodedBytes(reply_codec, count));
    Filling& to = filling[server_of_shard[i]];
    const uint32_t samples = shards[i].samples != 0 ? shards[i].samples : header.samples;
    if (!to.frame.parts.empty() &&
        (to.bytes + size > frame_bytes || to.frame.parts.size() == limits::kFramePartsMax ||
         samples != to.frame.header.samples)) {
      frames.push_back(std::move(to.frame));
      to = Filling();
    }
    if (to.frame.parts.empty()) {
      to.frame.header = header;
      to.frame.header.samples = samples;
      to.frame.header.worker = identity.worker();
      to.frame.header.incarnation = identity.incarnation();
      to.frame.header.cluster_epoch = identity.cluster_epoch();
      if (header.push_parts == 0) {
        to.frame.header.push_parts = parts;
        if (parts != layout.shard_count()) to.frame.header.server_parts = parts_of[server_of_shard[i]];
      }
    }
    PartHeader part;
    part.shard = i;
    part.codec = static_cast<uint8_t>(shards[i].codec);
    part.exponent = shards[i].exponent;
    part.count = count;
    part.version = shards[i].version;
    part.has_learning_rate = shards[i].learning_rate ? 1 : 0;
    part.learning_rate = shards[i].learning_rate.value_or(0);
    to.frame.parts.push_back(part);
    to.frame.payloads.push_back(shards[i].payload);
    to.bytes += size;
  }
  for (auto& [server, left] : filling) frames.push_back(std::move(left.frame));
  return frames;
}

std::vector<Frame> FramesFor(const ParamLayout& layout, const FrameHeader& header,
                             const WorkerIdentity& identity, const std::vector<EncodedShard>& shards) {
  return FramesFor(layout, header, identity, shards, AssignShards(layout, 1));
}

absl::Duration FrameDeadline(uint64_t bytes, absl::Duration wait) {
  return wait + absl::Seconds(5 + static_cast<double>(bytes) / limits::kLinkBytesPerSecondMin);
}

std::vector<EncodedShard> PlainShards(const ParamLayout& layout, std::vector<float> values) {
  RECON_CHECK_EQ(values.size(), layout.params());
  const auto shared = std::make_shared<const std::vector<float>>(std::move(values));
  std::vector<EncodedShard> shards(layout.shard_count());
  for (uint32_t i = 0; i < layout.shard_count(); ++i) {
    const ShardPlacement& shard = layout.shards()[i];
    shards[i].payload.Append(shared->data() + shard.offset, shard.size * sizeof(float), shared);
  }
  return shards;
}

}  // namespace recon
