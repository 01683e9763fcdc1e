#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "common/codec/wire_format.h"

namespace recon {

// Values <-> payload bytes. Free functions, thread-safe. Payloads need no alignment.

// What an encoder met.
struct EncodeStats {
  // Finite values beyond the codec's range, cut to its largest finite value.
  uint64_t saturated = 0;
  // Infinities and NaNs; the payload must not be sent if there are any.
  uint64_t non_finite = 0;
};

bool KnownCodec(uint8_t codec);
const char* CodecName(CodecId codec);
// "fp32", "fp16" or "bf16"; InvalidArgument otherwise.
absl::StatusOr<CodecId> ParseCodec(absl::string_view name);

// Bytes of `count` encoded values.
uint64_t EncodedBytes(CodecId codec, uint64_t count);

// Encodes `count` values to EncodedBytes() bytes at `out`; rounds to nearest, ties to even.
EncodeStats Encode(CodecId codec, const float* values, size_t count, uint8_t* out);

// The reverse. Exact: every 16-bit value has one FP32 value.
void Decode(CodecId codec, const uint8_t* bytes, size_t count, float* out);

// Whether all encoded values are finite.
bool AllFinite(CodecId codec, const uint8_t* bytes, size_t count);

}  // namespace recon
