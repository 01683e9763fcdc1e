#include "worker/runtime/replica.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "common/codec/codec.h"

namespace recon {
namespace {

constexpr size_t kTileParams = 4096;

}  // namespace

Replica::Replica(const ParamLayout* layout)
    : layout_(layout), values_(layout->params()), versions_(layout->shard_count(), kNoVersion) {}

bool Replica::complete() const {
  return std::find(versions_.begin(), versions_.end(), kNoVersion) == versions_.end();
}

void Replica::Forget() { std::fill(versions_.begin(), versions_.end(), kNoVersion); }

absl::Status Replica::Adopt(const Frame& reply) {
  alignas(64) uint8_t scratch[kTileParams * sizeof(float)];
  for (size_t i = 0; i < reply.parts.size(); ++i) {
    const PartHeader& part = reply.parts[i];
    if (part.shard >= versions_.size() || part.count != layout_->shards()[part.shard].size) {
      return absl::InvalidArgumentError(
          absl::StrCat("reply: shard ", part.shard, " of ", part.count, " values is not of this model"));
    }
    uint64_t& version = versions_[part.shard];
    if (part.payload_bytes == 0 || (version != kNoVersion && part.version <= version)) continue;
    float* out = values_.data() + layout_->shards()[part.shard].offset;
    const auto codec = static_cast<CodecId>(part.codec);
    ByteReader reader(reply.payloads[i]);
    for (size_t at = 0; at < part.count; at += kTileParams) {
      const size_t count = std::min<size_t>(kTileParams, part.count - at);
      Decode(codec, reader.Read(EncodedBytes(codec, count), scratch), count, out + at);
    }
    version = part.version;
    ++revision_;
  }
  return absl::OkStatus();
}

}  // namespace recon
