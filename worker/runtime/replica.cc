#include "worker/runtime/replica.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "common/base/status_macros.h"
#include "common/codec/codec.h"
#include "common/codec/sparse_codec.h"

namespace recon {
namespace {

constexpr size_t kTileParams = 4096;

}  // namespace

Replica::Replica(const ParamLayout* layout)
    : layout_(layout), values_(layout->params()), versions_(layout->shard_count(), kNoVersion) {}

bool Replica::complete() const {
  return std::find(versions_.begin(), versions_.end(), kNoVersion) == versions_.end();
}

void Replica::TakeShard(uint32_t shard, uint64_t version, const std::vector<PageRef>& pages) {
  const ShardPlacement& placement = layout_->shards()[shard];
  float* out = values_.data() + placement.offset;
  for (uint32_t page = 0; page < placement.pages(); ++page) {
    std::copy_n(pages[page].data(), placement.PageSize(page), out + size_t{page} * kPageParams);
  }
  versions_[shard] = version;
  ++revision_;
}

void Replica::Forget() { std::fill(versions_.begin(), versions_.end(), kNoVersion); }

absl::Status Replica::AdoptValues(const PartHeader& part, const ByteChain& payload) {
  const auto codec = static_cast<CodecId>(part.codec);
  float* out = values_.data() + layout_->shards()[part.shard].offset;
  if (IsSparse(codec)) {
    return ForEachSparsePage(codec, part.count, payload, [&](const SparsePage& page) {
      float* values = out + size_t{page.page} * kPageParams;
      if (page.all) std::copy(page.values.begin(), page.values.end(), values);
      for (size_t i = 0; i < page.indices.size(); ++i) values[page.indices[i]] = page.values[i];
    });
  }
  if (!IsValueCodec(codec)) {
    return absl::InvalidArgumentError(
        absl::StrCat("reply: shard ", part.shard, " has codec ", CodecName(codec)));
  }
  alignas(64) uint8_t scratch[kTileParams * sizeof(float)];
  ByteReader reader(payload);
  for (size_t at = 0; at < part.count; at += kTileParams) {
    const size_t count = std::min<size_t>(kTileParams, part.count - at);
    Decode(codec, reader.Read(EncodedBytes(codec, count), scratch), count, out + at);
  }
  return absl::OkStatus();
}

absl::Status Replica::Adopt(const Frame& reply) {
  for (size_t i = 0; i < reply.parts.size(); ++i) {
    const PartHeader& part = reply.parts[i];
    if (part.shard >= versions_.size() || part.count != layout_->shards()[part.shard].size) {
      return absl::InvalidArgumentError(
          absl::StrCat("reply: shard ", part.shard, " of ", part.count, " values is not of this model"));
    }
    uint64_t& version = versions_[part.shard];
    if (part.payload_bytes == 0 || (version != kNoVersion && part.version <= version)) continue;
    const auto codec = static_cast<CodecId>(part.codec);
    // Only the values that changed since the version this replica had: of no use to one that has forgotten
    // it.
    if (IsSparse(codec) && version == kNoVersion) continue;
    RECON_RETURN_IF_ERROR(AdoptValues(part, reply.payloads[i]));
    version = part.version;
    ++revision_;
  }
  return absl::OkStatus();
}

}  // namespace recon
