#include "worker/comm/replica.h"

#include <algorithm>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/check.h"
#include "common/base/status_macros.h"
#include "common/codec/page_hash.h"
#include "common/codec/sparse_codec.h"

namespace recon {
namespace {

constexpr size_t kTileParams = 4096;

}  // namespace

Replica::Replica(const ParamLayout* layout)
    : layout_(layout),
      versions_(layout->shard_count(), kNoVersion),
      codecs_(layout->shard_count(), CodecId::kFp32) {}

bool Replica::complete() const {
  return std::find(versions_.begin(), versions_.end(), kNoVersion) == versions_.end();
}

void Replica::BeginEpoch(uint64_t cluster_epoch) {
  // A restarted server counts versions from its snapshot: lower numbers are the newer ones.
  if (cluster_epoch != cluster_epoch_) std::fill(versions_.begin(), versions_.end(), kNoVersion);
  cluster_epoch_ = cluster_epoch;
}

void Replica::TakeShard(uint32_t shard, uint64_t version, uint64_t cluster_epoch,
                        const std::vector<PageRef>& pages) {
  RECON_CHECK_LT(shard, layout_->shard_count());
  RECON_CHECK_EQ(pages.size(), layout_->shards()[shard].pages());
  const ShardPlacement& placement = layout_->shards()[shard];
  MutexLock lock(&mu_);
  BeginEpoch(cluster_epoch);
  values_.resize(layout_->params());
  float* out = values_.data() + placement.offset;
  for (uint32_t page = 0; page < placement.pages(); ++page) {
    std::copy_n(pages[page].data(), placement.PageSize(page), out + size_t{page} * kPageParams);
  }
  versions_[shard] = version;
  codecs_[shard] = CodecId::kFp32;
  ++revision_;
}

absl::Span<float> Replica::TakeInitialValues() {
  MutexLock lock(&mu_);
  std::fill(versions_.begin(), versions_.end(), kNoVersion);
  std::fill(codecs_.begin(), codecs_.end(), CodecId::kFp32);
  ++revision_;
  values_.resize(layout_->params());
  return absl::MakeSpan(values_);
}

absl::Status Replica::TakeValues(const PartHeader& part, const ByteChain& payload) {
  const auto codec = static_cast<CodecId>(part.codec);
  values_.resize(layout_->params());
  float* out = values_.data() + layout_->shards()[part.shard].offset;
  const CodecId values_codec = IsSparse(codec) ? ValueCodec(codec) : codec;
  // Values of two kinds fit fp32 only.
  if (IsSparse(codec) && codecs_[part.shard] != values_codec) codecs_[part.shard] = CodecId::kFp32;
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
  RECON_RETURN_IF_ERROR(CheckPayloadBytes(codec, part.count, payload.size()));
  codecs_[part.shard] = codec;
  alignas(64) uint8_t scratch[kTileParams * sizeof(float)];
  ByteReader reader(payload);
  for (size_t at = 0; at < part.count; at += kTileParams) {
    const size_t count = std::min<size_t>(kTileParams, part.count - at);
    Decode(codec, reader.Read(EncodedBytes(codec, count), scratch), count, out + at);
  }
  return absl::OkStatus();
}

absl::Status Replica::CheckPart(const PartHeader& part) const {
  if (part.shard < layout_->shard_count() && part.count == layout_->shards()[part.shard].size) {
    return absl::OkStatus();
  }
  return absl::InvalidArgumentError(
      absl::StrCat("reply: shard ", part.shard, " of ", part.count, " values is not of this model"));
}

absl::Status Replica::Adopt(const Frame& reply) {
  MutexLock lock(&mu_);
  if (reply.header.cluster_epoch < cluster_epoch_) return absl::OkStatus();
  BeginEpoch(reply.header.cluster_epoch);
  for (size_t i = 0; i < reply.parts.size(); ++i) {
    const PartHeader& part = reply.parts[i];
    RECON_RETURN_IF_ERROR(CheckPart(part));
    uint64_t& version = versions_[part.shard];
    if (part.payload_bytes == 0 || (version != kNoVersion && part.version <= version)) continue;
    // Only the values that changed since the version this replica had: of no use to one that has forgotten
    // it.
    if (IsSparse(static_cast<CodecId>(part.codec)) && version == kNoVersion) continue;
    RECON_RETURN_IF_ERROR(TakeValues(part, reply.payloads[i]));
    version = part.version;
    ++revision_;
  }
  return absl::OkStatus();
}

absl::Status Replica::TakeUnchecked(const Frame& reply) {
  MutexLock lock(&mu_);
  for (size_t i = 0; i < reply.parts.size(); ++i) {
    RECON_RETURN_IF_ERROR(CheckPart(reply.parts[i]));
    if (reply.payloads[i].size() == 0) continue;
    const PartHeader& part = reply.parts[i];
    const auto codec = static_cast<CodecId>(part.codec);
    RECON_RETURN_IF_ERROR(CheckPayloadBytes(codec, part.count, reply.payloads[i].size()));
    // What is not finite has the hash of a finite value in 16 bits.
    RECON_RETURN_IF_ERROR(CheckPayload(codec, part.count, reply.payloads[i]));
    RECON_RETURN_IF_ERROR(TakeValues(reply.parts[i], reply.payloads[i]));
    versions_[reply.parts[i].shard] = kNoVersion;
    ++revision_;
  }
  return absl::OkStatus();
}

absl::Status Replica::TakeCorrections(const Frame& reply) {
  MutexLock lock(&mu_);
  BeginEpoch(reply.header.cluster_epoch);
  for (size_t i = 0; i < reply.parts.size(); ++i) {
    RECON_RETURN_IF_ERROR(CheckPart(reply.parts[i]));
    if (reply.payloads[i].size() > 0) {
      RECON_RETURN_IF_ERROR(TakeValues(reply.parts[i], reply.payloads[i]));
    }
    versions_[reply.parts[i].shard] = reply.parts[i].version;
    ++revision_;
  }
  return absl::OkStatus();
}

std::optional<Replica::Values> Replica::EncodeShard(uint32_t shard) const {
  RECON_CHECK_LT(shard, layout_->shard_count());
  const ShardPlacement& placement = layout_->shards()[shard];
  MutexLock lock(&mu_);
  if (versions_[shard] == kNoVersion) return std::nullopt;
  RECON_CHECK_EQ(values_.size(), layout_->params(), "a shard has a version, and no values");
  Values values{codecs_[shard], versions_[shard], {}};
  const uint64_t size = EncodedBytes(values.codec, placement.size);
  const std::shared_ptr<uint8_t[]> bytes(new uint8_t[size]);
  Encode(values.codec, values_.data() + placement.offset, placement.size, bytes.get());
  values.payload.Append(bytes.get(), size, bytes);
  return values;
}

Replica::Values Replica::HashShard(uint32_t shard) const {
  RECON_CHECK_LT(shard, layout_->shard_count());
  const ShardPlacement& placement = layout_->shards()[shard];
  MutexLock lock(&mu_);
  RECON_CHECK_EQ(values_.size(), layout_->params(), "nothing has been taken");
  std::string hashes;
  for (uint32_t page = 0; page < placement.pages(); ++page) {
    hashes += PageHash(codecs_[shard], values_.data() + placement.offset + size_t{page} * kPageParams,
                       placement.PageSize(page));
  }
  return {codecs_[shard], versions_[shard], ByteChain::FromString(std::move(hashes))};
}

}  // namespace recon
