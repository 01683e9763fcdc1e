#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/types/span.h"
#include "common/base/byte_chain.h"
#include "common/base/ids.h"
#include "common/codec/sparse_codec.h"
#include "common/codec/wire_format.h"

namespace recon {

// One shard's gradient as it was received. The payload refers to network buffers and has passed
// CheckPayload(). It stays as it is until it has been applied; its reply may be written over it then.
struct EncodedGradient {
  CodecId codec = CodecId::kFp32;
  uint32_t count = 0;
  ByteChain payload;
  int exponent = 0;  // PartHeader's.
};

// A worker's gradient for one step of a synchronous mean.
struct Contribution {
  WorkerId worker;
  Incarnation incarnation;
  // Fixes the order of the sum; see FrameHeader.
  uint64_t order_key = 0;
  // Samples in its batch, times the clipping factor of the push.
  double weight = 0;
  uint32_t samples = 0;
  float norm = 0;                       // Of the push's gradient, as its worker says.
  std::optional<double> learning_rate;  // As Shard::PushId has it.
  EncodedGradient gradient;
};

// Values that are decoded or gathered at a time, before they are updated: their 8 KiB of FP32, and as much of
// state, stay in the first-level cache.
inline constexpr size_t kTileParams = 2048;

// Receives the gradient's values [offset, offset + values.size()).
using TileSink = absl::FunctionRef<void(size_t offset, absl::Span<const float> values)>;

// The encoded values of a gradient in fp32, fp16 or bf16 where they lie, in order: runs that do not cross a
// page's end. They are times 2^exponent.
void ForEachRun(const EncodedGradient& gradient,
                absl::FunctionRef<void(size_t offset, const uint8_t* values, size_t count)> sink);

// Decodes a dense gradient tile by tile, in order.
void ForEachTile(const EncodedGradient& gradient, TileSink sink);

// Of all values of the shard, those that a sparse gradient does not name included (0). The same bits
// everywhere.
double RootMeanSquare(const EncodedGradient& gradient);

// The weighted sum of dense contributions, tile by tile, added in the order given. All have equal counts.
void ForEachSumTile(const std::vector<Contribution>& contributions, TileSink sink);

// The same sum, bit by bit, where some contributions are sparse. If all are, the pages name the values that
// any of them names; else all values.
void ForEachSumPage(const std::vector<Contribution>& contributions,
                    absl::FunctionRef<void(const SparsePage&)> sink);

bool AnySparse(const std::vector<Contribution>& contributions);

}  // namespace recon
