#include "worker/encode/cpu_encoder.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "common/base/check.h"
#include "common/codec/half_codec.h"
#include "common/codec/int8_codec.h"
#include "common/codec/random.h"
#include "common/codec/select_kernels.h"
#include "common/codec/selection.h"

namespace recon {
namespace {

constexpr uint64_t kNormPeriod = 16;
// Of a shard that is sent without its zeros, at most one value in so many is another: it is a fourth of the
// bytes in FP16, and the server has less to do with it than with all values. A dense gradient is known after
// as small a part of it.
constexpr uint32_t kMostlyZero = 8;

SparseRule RuleOf(CodecKind kind, bool sampled) {
  if (kind == CodecKind::kRandomK) return SparseRule::kRandomK;
  if (kind == CodecKind::kThreshold) return SparseRule::kThreshold;
  return sampled ? SparseRule::kTopKSampled : SparseRule::kTopK;
}

bool MostlyZero(const float* values, uint32_t count) {
  constexpr uint32_t kBlock = 256;
  const uint32_t most = count / kMostlyZero;
  uint32_t found = 0;
  for (uint32_t at = 0; at < count; at += kBlock) {
    const uint32_t end = std::min(count, at + kBlock);
    for (uint32_t i = at; i < end; ++i) found += values[i] != 0 ? 1 : 0;
    if (found > most) return false;
  }
  return true;
}

}  // namespace

CpuEncoder::CpuEncoder(const EncoderOptions& options, const ParamLayout* layout)
    : options_(options),
      layout_(layout),
      holds_residual_(layout->shard_count()),
      sums_(kPageParams),
      decoded_(kPageParams) {
  uint32_t pages = 0;
  for (const ShardPlacement& shard : layout->shards()) pages += shard.pages();
  guesses_.resize(pages);
}

void CpuEncoder::AllocateMemory() {
  if (options_.momentum > 0) velocity_.resize(layout_->params());
  if (options_.bf16_residual) {
    residual_bf16_.resize(layout_->params());
  } else {
    residual_.resize(layout_->params());
  }
}

PageMemory CpuEncoder::MemoryOf(uint64_t offset, uint32_t page) {
  PageMemory memory;
  if (!residual_.empty()) memory.residual = residual_.data() + offset;
  if (!residual_bf16_.empty()) memory.residual_bf16 = residual_bf16_.data() + offset;
  if (!velocity_.empty()) memory.velocity = velocity_.data() + offset;
  memory.guess = &guesses_[page];
  return memory;
}

double CpuEncoder::ResidualNorm() const {
  if (!residual_.empty()) return std::sqrt(SumOfSquares(residual_.data(), residual_.size()));
  std::vector<float> wide(kPageParams);
  double sum = 0;
  for (size_t at = 0; at < residual_bf16_.size(); at += kPageParams) {
    const size_t count = std::min(kPageParams, residual_bf16_.size() - at);
    DecodeBf16(reinterpret_cast<const uint8_t*>(residual_bf16_.data() + at), count, wide.data());
    sum += SumOfSquares(wide.data(), count);
  }
  return std::sqrt(sum);
}

void CpuEncoder::Clip(std::vector<float>* gradient, EncodedPush* push) const {
  if (options_.clip_norm <= 0) return;
  double sum = 0;
  for (const ShardPlacement& shard : layout_->shards()) {
    if (!layout_->averaged(shard.group)) sum += SumOfSquares(gradient->data() + shard.offset, shard.size);
  }
  push->gradient_norm = std::sqrt(sum);
  if (push->gradient_norm <= options_.clip_norm) return;
  const auto scale = static_cast<float>(options_.clip_norm / push->gradient_norm);
  for (const ShardPlacement& shard : layout_->shards()) {
    if (layout_->averaged(shard.group)) continue;
    for (uint32_t i = 0; i < shard.size; ++i) (*gradient)[shard.offset + i] *= scale;
  }
  push->gradient_norm = options_.clip_norm;
}

absl::StatusOr<EncodedPush> CpuEncoder::Encode(GradientBuffer* gradient, const EncodePlan& plan) {
  RECON_CHECK_EQ(gradient->host.size(), layout_->params());
  RECON_CHECK_EQ(plan.groups.size(), layout_->groups().size());
  RECON_CHECK(plan.due.empty() || plan.due.size() == layout_->shard_count());
  RECON_CHECK(plan.flush.empty() || plan.flush.size() == layout_->shard_count());
  EncodedPush push;
  Clip(&gradient->host, &push);
  push.shards.reserve(layout_->shard_count());
  uint32_t page = 0;
  for (uint32_t i = 0; i < layout_->shard_count(); ++i) {
    const ShardPlacement& shard = layout_->shards()[i];
    if (plan.Has(i)) {
      const uint64_t before = push.stats.lost();
      push.shards.push_back(EncodeShard(i, page, gradient->host.data() + shard.offset, plan, &push));
      push.shards.back().lost = push.stats.lost() - before;
    } else {
      push.shards.emplace_back().left_out = true;
    }
    page += shard.pages();
  }
  RECON_CHECK_EQ(page, guesses_.size(), "every page has a guess of its own");
  push.norm = std::sqrt(push.norm);
  // A pass over memory of its own: now and then is enough.
  const bool all_flushed =
      !plan.flush.empty() && std::find(plan.flush.begin(), plan.flush.end(), false) == plan.flush.end();
  if (plan.more_follows) return push;
  if (pushes_++ % kNormPeriod == 0 || all_flushed) residual_norm_ = ResidualNorm();
  push.residual_norm = residual_norm_;
  return push;
}

EncodedShard CpuEncoder::EncodeShard(uint32_t number, uint32_t first_page, const float* gradient,
                                     const EncodePlan& plan, EncodedPush* push) {
  const ShardPlacement& shard = layout_->shards()[number];
  const CodecSpec& spec = plan.groups[shard.group];
  const bool flush = plan.Flushes(number);
  const bool keep = spec.keeps_back() && options_.feedback;
  if (keep) AllocateMemory();
  const bool held = holds_residual_[number];
  if (spec.sparse() && !flush) {
    holds_residual_[number] = keep;
    return EncodeSparse(shard, first_page, gradient, spec, plan.seed, push);
  }
  const CodecId codec = flush && spec.keeps_back() ? CodecId::kFp32 : spec.wire_codec();
  // A codec without feedback after one with it sends the residual once.
  holds_residual_[number] = keep;
  if (plan.zeros_change_nothing && IsValueCodec(codec) && !keep && !held && !layout_->averaged(shard.group) &&
      MostlyZero(gradient, shard.size)) {
    return EncodeNonZero(shard, gradient, codec, push);
  }
  const size_t size = EncodedBytes(codec, shard.size);
  std::shared_ptr<uint8_t[]> memory = plan.memory ? plan.memory(number, size) : nullptr;
  if (memory == nullptr) memory.reset(new uint8_t[size]);
  EncodedShard encoded{codec};
  encoded.exponent =
      EncodeDense(shard, first_page, gradient, codec, keep, keep || held, plan.seed, memory.get(), push);
  encoded.payload.Append(memory.get(), size, memory);
  return encoded;
}

EncodedShard CpuEncoder::EncodeSparse(const ShardPlacement& shard, uint32_t first_page, const float* gradient,
                                      const CodecSpec& spec, uint64_t seed, EncodedPush* push) {
  SparsifyOptions options;
  options.rule = RuleOf(spec.kind, options_.sampled);
  options.ratio = spec.ratio;
  options.threshold = spec.threshold;
  options.feedback = options_.feedback;
  options.momentum = options_.feedback ? options_.momentum : 0;
  SparseWriter writer(CodecId::kSparseFp16, /*scaled=*/true);
  for (uint32_t page = 0; page < shard.pages(); ++page) {
    const size_t at = size_t{page} * kPageParams;
    push->norm += sparsifier_.AddPage(options, gradient + at, shard.PageSize(page),
                                      HashIndex(static_cast<uint32_t>(seed), first_page + page),
                                      MemoryOf(shard.offset + at, first_page + page), &writer);
  }
  EncodeStats stats = writer.stats();
  if (options_.feedback) stats.underflown = 0;  // They are kept back.
  push->stats.Add(stats);
  EncodedShard encoded{CodecId::kSparseFp16};
  encoded.exponent = writer.exponent();
  encoded.payload = ByteChain::FromString(writer.Finish());
  return encoded;
}

EncodedShard CpuEncoder::EncodeNonZero(const ShardPlacement& shard, const float* gradient, CodecId codec,
                                       EncodedPush* push) {
  SparseWriter writer(SparseCodec(codec), /*scaled=*/codec == CodecId::kFp16);
  for (uint32_t page = 0; page < shard.pages(); ++page) {
    const float* const values = gradient + size_t{page} * kPageParams;
    const uint32_t count = shard.PageSize(page);
    indices_.clear();
    sums_.clear();
    for (uint32_t i = 0; i < count; ++i) {
      if (values[i] == 0) continue;
      indices_.push_back(static_cast<uint16_t>(i));
      sums_.push_back(values[i]);
    }
    push->norm += SumOfSquares(sums_.data(), sums_.size());
    writer.AddPage(count, indices_, sums_.data());
  }
  sums_.resize(kPageParams);
  push->stats.Add(writer.stats());
  EncodedShard encoded{SparseCodec(codec)};
  encoded.exponent = writer.exponent();
  encoded.payload = ByteChain::FromString(writer.Finish());
  return encoded;
}

int8_t CpuEncoder::EncodeDense(const ShardPlacement& shard, uint32_t first_page, const float* gradient,
                               CodecId codec, bool keep, bool add_residual, uint64_t seed, uint8_t* bytes,
                               EncodedPush* push) {
  static_assert(kShardPagesMax == 1, "a part has one exponent");
  int exponent = 0;
  const size_t scales_bytes = codec == CodecId::kInt8 ? shard.pages() * sizeof(float) : 0;
  for (uint32_t page = 0; page < shard.pages(); ++page) {
    const size_t at = size_t{page} * kPageParams;
    const size_t count = shard.PageSize(page);
    const PageMemory memory = MemoryOf(shard.offset + at, first_page + page);
    const float* values = gradient + at;
    if (add_residual) {
      if (memory.residual_bf16 != nullptr) {
        DecodeBf16(reinterpret_cast<const uint8_t*>(memory.residual_bf16), count, sums_.data());
      } else {
        std::memcpy(sums_.data(), memory.residual, count * sizeof(float));
      }
      for (size_t i = 0; i < count; ++i) sums_[i] += values[i];
      values = sums_.data();
    }
    push->norm += SumOfSquares(values, count);
    uint8_t* out = bytes + scales_bytes;
    if (codec == CodecId::kInt8) {
      out += at;
      const float scale = Int8Scale(values, count, &push->stats);
      std::memcpy(bytes + page * sizeof(float), &scale, sizeof(float));
      EncodeInt8Page(values, count, scale, HashIndex(static_cast<uint32_t>(seed), first_page + page), out);
      if (keep) DecodeInt8(out, count, scale, decoded_.data());
    } else {
      out += EncodedBytes(codec, at);
      if (codec == CodecId::kFp16) {
        exponent = ExponentFor(LargestMagnitudeBits(values, count));
        push->stats.Add(EncodeFp16(values, count, out, exponent));
      } else {
        push->stats.Add(recon::Encode(codec, values, count, out));
      }
      if (keep) Decode(codec, out, count, decoded_.data(), exponent);
    }
    if (!add_residual) continue;
    for (size_t i = 0; i < count; ++i) sums_[i] = keep ? sums_[i] - decoded_[i] : 0;
    if (memory.velocity != nullptr) std::memset(memory.velocity, 0, count * sizeof(float));
    if (memory.residual_bf16 != nullptr) {
      EncodeBf16(sums_.data(), count, reinterpret_cast<uint8_t*>(memory.residual_bf16));
    } else {
      std::memcpy(memory.residual, sums_.data(), count * sizeof(float));
    }
  }
  return static_cast<int8_t>(exponent);
}

}  // namespace recon
