#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "common/base/byte_chain.h"
#include "common/codec/wire_format.h"

namespace recon {

// Values <-> payload bytes; FORMAT.md has the grammar. Free functions, thread-safe. Payloads need no
// alignment.

// What an encoder met.
struct EncodeStats {
  // Finite values beyond the codec's range, cut to its largest finite value.
  uint64_t saturated = 0;
  // Values other than 0 of which nothing is left but 0.
  uint64_t underflown = 0;
  // Infinities and NaNs; the payload must not be sent if there are any.
  uint64_t non_finite = 0;

  uint64_t lost() const { return saturated + underflown; }
  void Add(const EncodeStats& other) {
    saturated += other.saturated;
    underflown += other.underflown;
    non_finite += other.non_finite;
  }
};

bool KnownCodec(uint8_t codec);
const char* CodecName(CodecId codec);
// Any codec by its name. InvalidArgument otherwise.
absl::StatusOr<CodecId> ParseCodecId(absl::string_view name);
// One that keeps each value apart: "fp32", "fp16" or "bf16". InvalidArgument otherwise.
absl::StatusOr<CodecId> ParseValueCodec(absl::string_view name);

constexpr bool IsSparse(CodecId codec) { return codec >= CodecId::kSparseFp32; }
constexpr bool IsValueCodec(CodecId codec) { return codec <= CodecId::kBf16; }
// How a sparse codec's values are encoded: fp32, fp16 or bf16.
CodecId ValueCodec(CodecId sparse);
CodecId SparseCodec(CodecId value_codec);

// Bytes of a dense payload (not of a sparse one) of `count` values.
uint64_t EncodedBytes(CodecId codec, uint64_t count);
// OK if a payload of `count` values can have so many bytes. InvalidArgument with both numbers otherwise.
absl::Status CheckPayloadBytes(CodecId codec, uint32_t count, uint64_t bytes);
// Reads all of a payload of the right length: every rule of FORMAT.md, values that are finite included.
absl::Status CheckPayload(CodecId codec, uint32_t count, const ByteChain& payload);

// fp32, fp16, bf16 only: encodes `count` values to EncodedBytes() bytes at `out`; rounds to nearest, ties to
// even.
EncodeStats Encode(CodecId codec, const float* values, size_t count, uint8_t* out);
// The reverse. Exact: every 16-bit value has one FP32 value. `exponent`: that of the part (PartHeader).
void Decode(CodecId codec, const uint8_t* bytes, size_t count, float* out, int exponent = 0);
// Whether all encoded values are finite.
bool AllFinite(CodecId codec, const uint8_t* bytes, size_t count);

}  // namespace recon
