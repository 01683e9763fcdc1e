#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <vector>

#include "absl/status/statusor.h"
#include "common/base/byte_chain.h"
#include "common/codec/codec.h"
#include "common/codec/codec_spec.h"
#include "common/codec/sparsifier.h"

namespace recon {

// Where a backend leaves a gradient and an encoder takes it from: in host memory, or, in a buffer of the
// device's own kind, on the device.
class GradientBuffer {
 public:
  virtual ~GradientBuffer() = default;

  std::vector<float> host;  // ParamLayout::params() values; empty if the gradient is on a device.
};

// One shard's encoded values, or none for a pull.
struct EncodedShard {
  CodecId codec = CodecId::kFp32;
  int8_t exponent = 0;  // PartHeader's.
  ByteChain payload;
  uint64_t version = kNoVersion;
  uint64_t lost = 0;      // Values that were cut or became 0, and are not kept back.
  bool left_out = false;  // It has no part in the push.
  uint32_t samples = 0;   // That its gradient is the mean of; 0: as many as the push's header says.
  // That its update goes by; none: the server's.
  std::optional<double> learning_rate;
};

// How one push is encoded.
struct EncodePlan {
  std::vector<CodecSpec> groups;  // One for each group of the layout.
  // Shards that the push has; empty: all. What is kept back of the others stays as it is.
  std::vector<bool> due;
  bool Has(uint32_t shard) const { return due.empty() || due[shard]; }
  // Shards that send all that they kept back too, in FP32: nothing stays. Empty: none.
  std::vector<bool> flush;
  bool Flushes(uint32_t shard) const { return !flush.empty() && flush[shard]; }
  // Zeros change nothing on the server: a shard of which few values are others may be sent without them, by
  // fp32, fp16 and bf16, too.
  bool zeros_change_nothing = false;
  // Shards of the same push, which are not due here, are encoded by later calls.
  bool more_follows = false;
  uint64_t seed = 0;  // Of random choices; another one for each push.
  // Gives memory for so many bytes of a shard's payload, from which it need not be copied when it is sent.
  // Empty, itself or its result: the encoder's own serves as well.
  std::function<std::shared_ptr<uint8_t[]>(uint32_t shard, size_t bytes)> memory;
};

struct EncodedPush {
  std::vector<EncodedShard> shards;
  EncodeStats stats;
  // L2 norms of the gradient, if it was to be clipped (it has been); of what is sent, before rounding; and of
  // what is kept back, as of this push or a few before.
  double gradient_norm = 0;
  double norm = 0;
  double residual_norm = 0;
};

struct EncoderOptions {
  bool feedback = true;        // For int8 and the sparse codecs.
  bool bf16_residual = false;  // Kept in BF16: half the memory.
  float momentum = 0;          // Momentum correction for the sparse codecs; 0 = off.
  bool sampled = false;        // topk takes its threshold from a sample.
  double clip_norm = 0;        // A gradient of a larger L2 norm is scaled down to it first; 0 = off.
};

// Turns gradients into payloads and keeps what they leave out (the residual) for the next push.
//
// Threads: one at a time. Pushes are encoded in the order of their steps.
class GradientEncoder {
 public:
  virtual ~GradientEncoder() = default;

  // Unavailable if a device fails. Values that are not finite are counted in the stats. The gradient's values
  // are undefined afterwards.
  virtual absl::StatusOr<EncodedPush> Encode(GradientBuffer* gradient, const EncodePlan& plan) = 0;
};

}  // namespace recon
