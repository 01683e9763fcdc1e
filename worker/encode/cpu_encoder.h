#pragma once

#include <memory>
#include <vector>

#include "common/codec/sparsifier.h"
#include "common/tensor/param_layout.h"
#include "worker/encode/gradient_encoder.h"

namespace recon {

// The encoder for gradients in host memory.
class CpuEncoder : public GradientEncoder {
 public:
  // `layout` must outlive the encoder.
  CpuEncoder(const EncoderOptions& options, const ParamLayout* layout);

  absl::StatusOr<EncodedPush> Encode(GradientBuffer* gradient, const EncodePlan& plan) override;

 private:
  // One shard; `first_page` counts the pages of all shards in order.
  EncodedShard EncodeShard(uint32_t shard, uint32_t first_page, const float* gradient, const EncodePlan& plan,
                           EncodedPush* push);
  EncodedShard EncodeSparse(const ShardPlacement& shard, uint32_t first_page, const float* gradient,
                            const CodecSpec& spec, uint64_t seed, EncodedPush* push);
  // The values that are not 0.
  EncodedShard EncodeNonZero(const ShardPlacement& shard, const float* gradient, CodecId codec,
                             EncodedPush* push);
  // To `bytes`: EncodedBytes() of the shard's values. Gives the part's exponent.
  int8_t EncodeDense(const ShardPlacement& shard, uint32_t first_page, const float* gradient, CodecId codec,
                     bool keep, bool add_residual, uint64_t seed, uint8_t* bytes, EncodedPush* push);
  void AllocateMemory();
  PageMemory MemoryOf(uint64_t offset, uint32_t page);
  void Clip(std::vector<float>* gradient, EncodedPush* push) const;
  double ResidualNorm() const;

  const EncoderOptions options_;
  const ParamLayout* const layout_;
  Sparsifier sparsifier_;
  // Flat, as the layout; empty until a plan needs them.
  std::vector<float> residual_;
  std::vector<uint16_t> residual_bf16_;
  std::vector<float> velocity_;
  std::vector<uint32_t> guesses_;     // One a page.
  std::vector<bool> holds_residual_;  // One a shard: whether it may be other than 0.
  uint64_t pushes_ = 0;
  double residual_norm_ = 0;  // Of some pushes ago.
  std::vector<float> sums_, decoded_;
  std::vector<uint16_t> indices_;
};

}  // namespace recon
