#include "worker/comm/step_mean.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "common/base/status_macros.h"
#include "common/codec/codec.h"
#include "common/codec/sparse_codec.h"

namespace recon {
namespace {

constexpr size_t kTileParams = 4096;

}  // namespace

StepMean::StepMean(const ParamLayout* layout) : layout_(layout), pushed_(layout->shard_count()) {
  for (uint32_t i = 0; i < layout->shard_count(); ++i) {
    pushed_[i] = !HoldsState(*layout, i);
    pushed_count_ += pushed_[i] ? 1 : 0;
  }
}

void StepMean::Begin(uint64_t step) {
  step_ = step;
  values_.resize(layout_->params());
  here_.assign(layout_->shard_count(), false);
  missing_ = pushed_count_;
  open_ = gone_ = false;
  pushes_ = 0;
}

absl::Status StepMean::TakeValues(const PartHeader& part, const ByteChain& payload) {
  const auto codec = static_cast<CodecId>(part.codec);
  float* const out = values_.data() + layout_->shards()[part.shard].offset;
  if (IsSparse(codec)) {
    RECON_RETURN_IF_ERROR(CheckPayload(codec, part.count, payload));
    std::fill_n(out, part.count, 0.0f);
    return ForEachSparsePage(codec, part.count, payload, [&](const SparsePage& page) {
      float* const values = out + size_t{page.page} * kPageParams;
      if (page.all) std::copy(page.values.begin(), page.values.end(), values);
      for (size_t i = 0; i < page.indices.size(); ++i) values[page.indices[i]] = page.values[i];
    });
  }
  if (!IsValueCodec(codec)) {
    return absl::InvalidArgumentError(
        absl::StrCat("mean: shard ", part.shard, " has codec ", CodecName(codec)));
  }
  RECON_RETURN_IF_ERROR(CheckPayloadBytes(codec, part.count, payload.size()));
  alignas(64) uint8_t scratch[kTileParams * sizeof(float)];
  ByteReader reader(payload);
  for (size_t at = 0; at < part.count; at += kTileParams) {
    const size_t count = std::min<size_t>(kTileParams, part.count - at);
    Decode(codec, reader.Read(EncodedBytes(codec, count), scratch), count, out + at);
  }
  return absl::OkStatus();
}

absl::Status StepMean::Take(const Frame& reply) {
  for (size_t i = 0; i < reply.parts.size(); ++i) {
    const PartHeader& part = reply.parts[i];
    if (part.shard >= layout_->shard_count() || part.count != layout_->shards()[part.shard].size ||
        !pushed_[part.shard]) {
      return absl::InvalidArgumentError(absl::StrCat("mean: shard ", part.shard, " of ", part.count,
                                                     " values is not of this model's pushes"));
    }
    if (part.version == kNoVersion) gone_ = true;
    if (part.version == 0) open_ = true;
    if (part.version != step_ + 1 || reply.payloads[i].size() == 0) continue;
    RECON_RETURN_IF_ERROR(TakeValues(part, reply.payloads[i]));
    pushes_ = std::max(pushes_, reply.header.samples);
    if (!here_[part.shard]) --missing_;
    here_[part.shard] = true;
  }
  return absl::OkStatus();
}

}  // namespace recon
