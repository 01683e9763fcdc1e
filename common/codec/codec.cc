#include "common/codec/codec.h"

#include <cstring>
#include <string>

#include "absl/strings/str_cat.h"
#include "common/codec/half_codec.h"

namespace recon {

bool KnownCodec(uint8_t codec) { return codec <= static_cast<uint8_t>(CodecId::kBf16); }

const char* CodecName(CodecId codec) {
  switch (codec) {
    case CodecId::kFp32:
      return "fp32";
    case CodecId::kFp16:
      return "fp16";
    case CodecId::kBf16:
      return "bf16";
  }
  return "unknown";
}

absl::StatusOr<CodecId> ParseCodec(absl::string_view name) {
  for (const CodecId codec : {CodecId::kFp32, CodecId::kFp16, CodecId::kBf16}) {
    if (name == CodecName(codec)) return codec;
  }
  return absl::InvalidArgumentError(absl::StrCat("codec ", name, " is unknown; known are fp32, fp16, bf16"));
}

uint64_t EncodedBytes(CodecId codec, uint64_t count) {
  return codec == CodecId::kFp32 ? count * 4 : count * 2;
}

EncodeStats Encode(CodecId codec, const float* values, size_t count, uint8_t* out) {
  switch (codec) {
    case CodecId::kFp16:
      return EncodeFp16(values, count, out);
    case CodecId::kBf16:
      return EncodeBf16(values, count, out);
    case CodecId::kFp32:
      break;
  }
  EncodeStats stats;
  if (count == 0) return stats;  // Pointers may be null.
  std::memcpy(out, values, count * sizeof(float));
  stats.non_finite = CountNonFinite(values, count);
  return stats;
}

void Decode(CodecId codec, const uint8_t* bytes, size_t count, float* out) {
  switch (codec) {
    case CodecId::kFp16:
      return DecodeFp16(bytes, count, out);
    case CodecId::kBf16:
      return DecodeBf16(bytes, count, out);
    case CodecId::kFp32:
      if (count > 0) std::memcpy(out, bytes, count * sizeof(float));
  }
}

bool AllFinite(CodecId codec, const uint8_t* bytes, size_t count) {
  switch (codec) {
    case CodecId::kFp16:
      return AllFinite16(bytes, count, 0x7C00);
    case CodecId::kBf16:
      return AllFinite16(bytes, count, 0x7F80);
    case CodecId::kFp32:
      break;
  }
  return AllFinite32(bytes, count);
}

}  // namespace recon
