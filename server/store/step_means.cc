#include "server/store/step_means.h"

#include <memory>

#include "common/base/pool_allocator.h"
#include "common/codec/codec.h"
#include "common/codec/sparse_codec.h"

namespace recon {

void StepMeans::Keep(uint64_t step, const Pages& mean, uint32_t pushes) {
  kept_.Keep(step, mean);
  pushes_.emplace_back(step, pushes);
  if (pushes_.size() > capacity()) pushes_.pop_front();
}

uint32_t StepMeans::PushesOf(uint64_t step) const {
  for (const auto& [of, pushes] : pushes_) {
    if (of == step) return pushes;
  }
  return 0;
}

StepMeans::Is StepMeans::Encode(uint64_t step, CodecId codec, Encoded* mean) {
  if (step >= first_open_step_) return Is::kOpen;
  const Pages* const pages = kept_.Find(step);
  if (pages == nullptr) return Is::kGone;
  mean->pushes = PushesOf(step);
  if (lent_step_ == step && lent_asked_ == codec) {
    mean->payload = lent_.Get();
    mean->codec = lent_codec_;
    if (mean->payload.size() > 0) return Is::kHere;
  }
  mean->codec = SparseCodec(codec);
  mean->payload = Sparse(codec, *pages);
  if (mean->payload.size() == 0) {
    mean->codec = codec;
    mean->payload = Dense(codec, *pages);
    if (codec == CodecId::kFp32) return Is::kHere;  // It refers to the pages, and has as many owners.
  }
  lent_.Lend(mean->payload);
  lent_step_ = step;
  lent_asked_ = codec;
  lent_codec_ = mean->codec;
  return Is::kHere;
}

ByteChain StepMeans::Sparse(CodecId codec, const Pages& pages) const {
  const uint64_t dense_bytes = EncodedBytes(codec, placement_.size);
  const size_t value_bytes = EncodedBytes(codec, 1);
  SparseWriter writer(SparseCodec(codec));
  std::vector<uint16_t> indices;
  std::vector<float> values;
  for (uint32_t page = 0; page < placement_.pages(); ++page) {
    const float* const from = pages[page].data();
    const uint32_t size = placement_.PageSize(page);
    // An index costs a byte at least.
    const size_t most = size * value_bytes / (value_bytes + 1);
    indices.clear();
    values.clear();
    for (uint32_t i = 0; i < size && indices.size() <= most; ++i) {
      if (from[i] == 0) continue;
      indices.push_back(static_cast<uint16_t>(i));
      values.push_back(from[i]);
    }
    if (indices.size() > most) {
      writer.AddWholePage(size, from);
    } else {
      writer.AddPage(size, indices, values.data());
    }
    if (writer.bytes() >= dense_bytes) return ByteChain();
  }
  return ByteChain::FromString(writer.Finish());
}

ByteChain StepMeans::Dense(CodecId codec, const Pages& pages) const {
  ByteChain chain;
  if (codec == CodecId::kFp32) {
    for (uint32_t page = 0; page < placement_.pages(); ++page) {
      auto owner = MakePooled<const PageRef>(pages[page]);
      chain.Append(owner->data(), placement_.PageSize(page) * sizeof(float), owner);
    }
    return chain;
  }
  const uint64_t size = EncodedBytes(codec, placement_.size);
  const std::shared_ptr<uint8_t[]> bytes(new uint8_t[size]);
  for (uint32_t page = 0; page < placement_.pages(); ++page) {
    recon::Encode(codec, pages[page].data(), placement_.PageSize(page),
                  bytes.get() + EncodedBytes(codec, page * kPageParams));
  }
  chain.Append(bytes.get(), size, bytes);
  return chain;
}

}  // namespace recon
