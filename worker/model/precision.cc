#include "worker/model/precision.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "common/codec/half_codec.h"

namespace recon {
namespace {

// What is rounded at a time stays in the first-level cache.
constexpr size_t kTile = 4096;

}  // namespace

absl::StatusOr<Precision> ParsePrecision(absl::string_view text) {
  for (const Precision precision : {Precision::kFp32, Precision::kBf16, Precision::kFp16}) {
    if (text == PrecisionName(precision)) return precision;
  }
  return absl::InvalidArgumentError(absl::StrCat("--precision ", text, ": expected fp32, bf16 or fp16"));
}

const char* PrecisionName(Precision precision) {
  switch (precision) {
    case Precision::kBf16:
      return "bf16";
    case Precision::kFp16:
      return "fp16";
    default:
      return "fp32";
  }
}

bool Rounder::Round(absl::Span<float> values) {
  if (!rounds()) return true;
  bytes_.resize(2 * kTile);
  bool fits = true;
  for (size_t at = 0; at < values.size(); at += kTile) {
    const absl::Span<float> tile = values.subspan(at, std::min(kTile, values.size() - at));
    const bool half = precision_ == Precision::kFp16;
    const EncodeStats stats = half ? EncodeFp16(tile.data(), tile.size(), bytes_.data())
                                   : EncodeBf16(tile.data(), tile.size(), bytes_.data());
    half ? DecodeFp16(bytes_.data(), tile.size(), tile.data())
         : DecodeBf16(bytes_.data(), tile.size(), tile.data());
    fits = fits && stats.saturated == 0 && stats.non_finite == 0;
  }
  return fits;
}

}  // namespace recon
