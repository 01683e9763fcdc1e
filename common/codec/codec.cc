#include "common/codec/codec.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <iterator>
#include <limits>
#include <string>

#include "absl/strings/str_cat.h"
#include "common/base/check.h"
#include "common/codec/half_codec.h"
#include "common/codec/sparse_codec.h"
#include "common/tensor/page.h"

namespace recon {

namespace {

struct NamedCodec {
  CodecId id;
  const char* name;
};
constexpr NamedCodec kCodecs[] = {
    {CodecId::kFp32, "fp32"},
    {CodecId::kFp16, "fp16"},
    {CodecId::kBf16, "bf16"},
    {CodecId::kInt8, "int8"},
    {CodecId::kSparseFp32, "sparse-fp32"},
    {CodecId::kSparseFp16, "sparse-fp16"},
    {CodecId::kSparseBf16, "sparse-bf16"},
};
static_assert(std::size(kCodecs) == kCodecIdMax + 1);

// Values looked at together: 16 KiB of FP32 stay in the first-level cache.
constexpr size_t kTile = 4096;
// The largest scale whose 127-fold is finite.
constexpr float kInt8ScaleMax = std::numeric_limits<float>::max() / 127;

absl::StatusOr<CodecId> ParseAmong(absl::string_view name, bool value_codecs_only) {
  std::string known;
  for (const NamedCodec& codec : kCodecs) {
    if (value_codecs_only && !IsValueCodec(codec.id)) continue;
    if (name == codec.name) return codec.id;
    absl::StrAppend(&known, known.empty() ? "" : ", ", codec.name);
  }
  return absl::InvalidArgumentError(absl::StrCat("codec ", name, " is unknown; known are ", known));
}

absl::Status CheckInt8(uint32_t count, const ByteChain& payload) {
  ByteReader reader(payload);
  uint8_t scratch[sizeof(float)];
  for (uint32_t page = 0; page < PagesOf(count); ++page) {
    float scale;
    std::memcpy(&scale, reader.Read(sizeof(float), scratch), sizeof(float));
    if (!(scale >= 0 && scale <= kInt8ScaleMax)) {
      return absl::InvalidArgumentError(
          absl::StrCat("int8 page ", page, ": scale is ", scale, ", expected 0 to ", kInt8ScaleMax));
    }
  }
  for (size_t at = 0, size = 0; at < count; at += size) {
    const uint8_t* bytes = reader.ReadRun(1, count - at, scratch, &size);
    if (const void* found = std::memchr(bytes, 0x80, size)) {
      return absl::InvalidArgumentError(
          absl::StrCat("int8 value ", at + static_cast<size_t>(static_cast<const uint8_t*>(found) - bytes),
                       " is -128, expected -127 to 127"));
    }
  }
  return absl::OkStatus();
}

}  // namespace

bool KnownCodec(uint8_t codec) { return codec <= kCodecIdMax; }

const char* CodecName(CodecId codec) {
  return KnownCodec(static_cast<uint8_t>(codec)) ? kCodecs[static_cast<size_t>(codec)].name : "unknown";
}

absl::StatusOr<CodecId> ParseCodecId(absl::string_view name) { return ParseAmong(name, false); }
absl::StatusOr<CodecId> ParseValueCodec(absl::string_view name) { return ParseAmong(name, true); }

CodecId ValueCodec(CodecId sparse) {
  RECON_CHECK(IsSparse(sparse));
  return static_cast<CodecId>(static_cast<uint8_t>(sparse) - static_cast<uint8_t>(CodecId::kSparseFp32));
}
CodecId SparseCodec(CodecId value_codec) {
  RECON_CHECK(IsValueCodec(value_codec));
  return static_cast<CodecId>(static_cast<uint8_t>(value_codec) + static_cast<uint8_t>(CodecId::kSparseFp32));
}
static_assert(static_cast<int>(CodecId::kSparseBf16) - static_cast<int>(CodecId::kSparseFp32) ==
              static_cast<int>(CodecId::kBf16) - static_cast<int>(CodecId::kFp32));

uint64_t EncodedBytes(CodecId codec, uint64_t count) {
  if (codec == CodecId::kFp32) return count * 4;
  if (codec == CodecId::kInt8) return (count + kPageParams - 1) / kPageParams * sizeof(float) + count;
  return count * 2;
}

absl::Status CheckPayloadBytes(CodecId codec, uint32_t count, uint64_t bytes) {
  if (IsSparse(codec)) {
    // Every page: a header, and for each value 3 bytes of index at most.
    const uint64_t low = PagesOf(count) * kSparsePageHeaderBytes;
    const uint64_t high = low + count * (3 + EncodedBytes(ValueCodec(codec), 1));
    if (bytes >= low && bytes <= high) return absl::OkStatus();
    return absl::InvalidArgumentError(absl::StrCat(bytes, ", expected ", low, " to ", high, " for ", count,
                                                   " values of codec ", CodecName(codec)));
  }
  const uint64_t expected = EncodedBytes(codec, count);
  if (bytes == expected) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat(bytes, ", expected ", expected, " for ", count, " values of codec ", CodecName(codec)));
}

absl::Status CheckPayload(CodecId codec, uint32_t count, const ByteChain& payload) {
  if (IsSparse(codec)) return ForEachSparsePage(codec, count, payload, [](const SparsePage&) {});
  if (codec == CodecId::kInt8) return CheckInt8(count, payload);
  uint8_t scratch[sizeof(float)];
  ByteReader reader(payload);
  for (size_t at = 0, run = 0; at < count; at += run) {
    const uint8_t* bytes =
        reader.ReadRun(EncodedBytes(codec, 1), std::min<size_t>(kTile, count - at), scratch, &run);
    if (!AllFinite(codec, bytes, run)) {
      return absl::InvalidArgumentError(
          absl::StrCat("a value from number ", at, " to ", at + run - 1, " is infinite or not a number"));
    }
  }
  return absl::OkStatus();
}

EncodeStats Encode(CodecId codec, const float* values, size_t count, uint8_t* out) {
  switch (codec) {
    case CodecId::kFp16:
      return EncodeFp16(values, count, out);
    case CodecId::kBf16:
      return EncodeBf16(values, count, out);
    default:
      break;
  }
  EncodeStats stats;
  if (count == 0) return stats;  // Pointers may be null.
  std::memcpy(out, values, count * sizeof(float));
  stats.non_finite = CountNonFinite(values, count);
  return stats;
}

void Decode(CodecId codec, const uint8_t* bytes, size_t count, float* out, int exponent) {
  switch (codec) {
    case CodecId::kFp16:
      return DecodeFp16(bytes, count, out, exponent);
    case CodecId::kBf16:
      return DecodeBf16(bytes, count, out);
    default:
      if (count > 0) std::memcpy(out, bytes, count * sizeof(float));
  }
}

bool AllFinite(CodecId codec, const uint8_t* bytes, size_t count) {
  switch (codec) {
    case CodecId::kFp16:
      return AllFinite16(bytes, count, 0x7C00);
    case CodecId::kBf16:
      return AllFinite16(bytes, count, 0x7F80);
    default:
      break;
  }
  return AllFinite32(bytes, count);
}

}  // namespace recon
