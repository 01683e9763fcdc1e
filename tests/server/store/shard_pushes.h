#pragma once

#include <algorithm>
#include <cstring>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "common/codec/codec.h"
#include "common/codec/half_codec.h"
#include "common/codec/select_kernels.h"
#include "common/codec/selection.h"
#include "server/store/shard.h"

// What tests of shards are made of: gradients, pushes, and the values that come out.

namespace recon {

inline constexpr uint32_t kSize = kPageParams + 5000;

inline EncodedGradient Gradient(CodecId codec, const std::vector<float>& values, size_t cut) {
  const auto count = static_cast<uint32_t>(values.size());
  std::string bytes(EncodedBytes(codec, count), '\0');
  auto* const out = reinterpret_cast<uint8_t*>(bytes.data());
  EncodedGradient gradient{codec, count, {}};
  if (codec == CodecId::kFp16) {  // As workers send it.
    gradient.exponent = ExponentFor(LargestMagnitudeBits(values.data(), count));
    EncodeFp16(values.data(), count, out, gradient.exponent);
  } else {
    Encode(codec, values.data(), count, out);
  }
  // Pieces of odd sizes, as slices of a network buffer are.
  for (size_t at = 0; at < bytes.size();) {
    const size_t size = cut == 0 ? bytes.size() : std::min(cut, bytes.size() - at);
    gradient.payload.Append(ByteChain::FromString(bytes.substr(at, size)));
    at += size;
  }
  return gradient;
}
inline EncodedGradient Gradient(CodecId codec, float value, uint32_t count = kSize, size_t cut = 0) {
  return Gradient(codec, std::vector<float>(count, value), cut);
}

inline OptimizerConfig Sgd(double rate) {
  OptimizerConfig config;
  config.kind = OptimizerKind::kSgd;
  config.learning_rate = rate;
  return config;
}

// Of 16-bit values.
inline auto MemoryOf(size_t values) {
  return [values] {
    const std::shared_ptr<uint8_t[]> bytes(new uint8_t[2 * values]);
    ByteChain chain;
    chain.Append(bytes.get(), 2 * values, bytes);
    return chain;
  };
}

// The same bytes in the same pieces, of one owner, that may be written.
inline ByteChain Copy(const ByteChain& bytes) {
  const std::shared_ptr<uint8_t[]> all(new uint8_t[bytes.size() + bytes.pieces().size()]);
  ByteChain copy;
  uint8_t* at = all.get();
  for (const ByteChain::Piece& piece : bytes.pieces()) {
    std::memcpy(at, piece.data, piece.size);
    copy.Append(at, piece.size, all);
    at += piece.size + 1;  // Apart, as a network's buffers are.
  }
  return copy;
}

inline std::vector<float> Values(Shard* shard) {
  const std::string bytes = shard->Encoded(CodecId::kFp32).ToString();
  std::vector<float> values(bytes.size() / sizeof(float));
  std::memcpy(values.data(), bytes.data(), bytes.size());
  return values;
}

inline Shard::PushId Push(uint32_t worker, uint64_t step) {
  return {WorkerId(worker), Incarnation(100 + worker), step};
}

inline Contributor By(uint32_t worker) { return {WorkerId(worker), Incarnation(100 + worker)}; }

inline Contribution From(uint64_t order_key, uint32_t samples, EncodedGradient gradient) {
  Contribution contribution;
  contribution.order_key = order_key;
  contribution.samples = samples;
  contribution.weight = samples;
  contribution.gradient = std::move(gradient);
  return contribution;
}

}  // namespace recon
