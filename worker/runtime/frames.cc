#include "worker/runtime/frames.h"

#include <algorithm>
#include <utility>

#include "common/base/limits.h"

namespace recon {

std::vector<Frame> FramesFor(const ParamLayout& layout, const FrameHeader& header,
                             const WorkerIdentity& identity, const std::vector<EncodedShard>& shards) {
  std::vector<Frame> frames;
  uint64_t bytes = 0;
  for (uint32_t i = 0; i < shards.size(); ++i) {
    const uint32_t count = layout.shards()[i].size;
    // A pull's or a sparse push's frame is small, but its reply may have all values of its shards.
    const uint64_t size = std::max<uint64_t>(shards[i].payload.size(),
                                             EncodedBytes(static_cast<CodecId>(header.reply_codec), count));
    if (frames.empty() || bytes + size > limits::kFrameTargetBytes ||
        frames.back().parts.size() == limits::kFramePartsMax) {
      frames.emplace_back();
      frames.back().header = header;
      frames.back().header.worker = identity.worker();
      frames.back().header.incarnation = identity.incarnation();
      frames.back().header.cluster_epoch = identity.cluster_epoch();
      frames.back().header.push_parts = layout.shard_count();
      bytes = 0;
    }
    PartHeader part;
    part.shard = i;
    part.codec = static_cast<uint8_t>(shards[i].codec);
    part.count = count;
    part.version = shards[i].version;
    frames.back().parts.push_back(part);
    frames.back().payloads.push_back(shards[i].payload);
    bytes += size;
  }
  return frames;
}

std::vector<EncodedShard> PlainShards(const ParamLayout& layout, std::vector<float> values) {
  const auto shared = std::make_shared<const std::vector<float>>(std::move(values));
  std::vector<EncodedShard> shards(layout.shard_count());
  for (uint32_t i = 0; i < layout.shard_count(); ++i) {
    const ShardPlacement& shard = layout.shards()[i];
    shards[i].payload.Append(shared->data() + shard.offset, shard.size * sizeof(float), shared);
  }
  return shards;
}

}  // namespace recon
