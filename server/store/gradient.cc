#include "server/store/gradient.h"

#include <algorithm>
#include <cstring>

#include "common/codec/codec.h"
#include "server/store/optimizer_kernels.h"

namespace recon {

void ForEachTile(const EncodedGradient& gradient, TileSink sink) {
  alignas(64) float values[kTileParams];
  alignas(64) uint8_t scratch[kTileParams * sizeof(float)];
  ByteReader reader(gradient.payload);
  for (size_t at = 0; at < gradient.count; at += kTileParams) {
    const size_t count = std::min<size_t>(kTileParams, gradient.count - at);
    const uint8_t* bytes = reader.Read(EncodedBytes(gradient.codec, count), scratch);
    Decode(gradient.codec, bytes, count, values);
    sink(at, absl::MakeConstSpan(values, count));
  }
}

void ForEachSumTile(const std::vector<Contribution>& contributions, TileSink sink) {
  alignas(64) float sum[kTileParams];
  alignas(64) float values[kTileParams];
  alignas(64) uint8_t scratch[kTileParams * sizeof(float)];
  std::vector<ByteReader> readers;
  for (const Contribution& contribution : contributions) readers.emplace_back(contribution.gradient.payload);
  const size_t total = contributions.empty() ? 0 : contributions.front().gradient.count;
  for (size_t at = 0; at < total; at += kTileParams) {
    const size_t count = std::min<size_t>(kTileParams, total - at);
    std::memset(sum, 0, sizeof(sum));
    for (size_t i = 0; i < contributions.size(); ++i) {
      const CodecId codec = contributions[i].gradient.codec;
      Decode(codec, readers[i].Read(EncodedBytes(codec, count), scratch), count, values);
      AddWeighted(values, static_cast<float>(contributions[i].weight), count, sum);
    }
    sink(at, absl::MakeConstSpan(sum, count));
  }
}

bool AllFinite(const EncodedGradient& gradient) {
  alignas(64) uint8_t scratch[kTileParams * sizeof(float)];
  ByteReader reader(gradient.payload);
  for (size_t at = 0; at < gradient.count; at += kTileParams) {
    const size_t count = std::min<size_t>(kTileParams, gradient.count - at);
    if (!AllFinite(gradient.codec, reader.Read(EncodedBytes(gradient.codec, count), scratch), count))
      return false;
  }
  return true;
}

}  // namespace recon
