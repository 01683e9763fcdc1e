#include "common/codec/int8_codec.h"

#include <cmath>
#include <cstring>

#include "common/codec/half_codec.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "common/codec/int8_codec.cc"
#include "hwy/foreach_target.h"  // IWYU pragma: keep
#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace recon {
namespace HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

using F32 = hn::ScalableTag<float>;
using U32 = hn::RebindToUnsigned<F32>;
using I32 = hn::RebindToSigned<F32>;
using I8 = hn::Rebind<int8_t, F32>;

// HashIndex() of random.h, a vector at a time.
template <typename V>
HWY_INLINE V Hash(U32 d, V h) {
  h = hn::Xor(h, hn::ShiftRight<16>(h));
  h = hn::Mul(h, hn::Set(d, 0x85EBCA6Bu));
  h = hn::Xor(h, hn::ShiftRight<13>(h));
  h = hn::Mul(h, hn::Set(d, 0xC2B2AE35u));
  return hn::Xor(h, hn::ShiftRight<16>(h));
}

// `values`, `out` of one vector; `counter` = seed + index * golden ratio.
template <typename V>
HWY_INLINE auto EncodeVector(const float* values, float inverse, V counter) {
  const F32 d;
  const U32 du;
  const I32 di;
  const auto random = hn::BitCast(di, hn::ShiftRight<8>(Hash(du, counter)));
  const auto uniform = hn::Mul(hn::ConvertTo(d, random), hn::Set(d, 0x1p-24f));
  const auto scaled = hn::Mul(hn::LoadU(d, values), hn::Set(d, inverse));
  const auto rounded = hn::Floor(hn::Add(scaled, uniform));
  const auto bounded = hn::Min(hn::Max(rounded, hn::Set(d, -127.0f)), hn::Set(d, 127.0f));
  return hn::DemoteTo(I8(), hn::ConvertTo(di, bounded));
}

void EncodeInt8(const float* values, size_t count, float inverse, uint32_t seed, uint8_t* out) {
  const U32 du;
  const size_t lanes = hn::Lanes(du);
  const uint32_t golden = 0x9E3779B9u;
  // HashIndex()'s seed + index * golden, for the lanes of the first vector and then of each next.
  auto counter = hn::Add(hn::Mul(hn::Iota(du, 0), hn::Set(du, golden)), hn::Set(du, seed));
  const auto next = hn::Set(du, golden * static_cast<uint32_t>(lanes));
  size_t i = 0;
  for (; i + lanes <= count; i += lanes) {
    hn::StoreU(EncodeVector(values + i, inverse, counter), I8(), reinterpret_cast<int8_t*>(out) + i);
    counter = hn::Add(counter, next);
  }
  if (i == count) return;
  HWY_ALIGN float tail[HWY_MAX_BYTES / 4] = {};
  HWY_ALIGN int8_t bytes[HWY_MAX_BYTES / 4];
  std::memcpy(tail, values + i, (count - i) * sizeof(float));
  hn::StoreU(EncodeVector(tail, inverse, counter), I8(), bytes);
  std::memcpy(out + i, bytes, count - i);
}

void DecodeInt8(const uint8_t* bytes, size_t count, float scale, float* values) {
  const F32 d;
  const I32 di;
  const I8 d8;
  const size_t lanes = hn::Lanes(d);
  size_t i = 0;
  for (; i + lanes <= count; i += lanes) {
    const auto wide = hn::PromoteTo(di, hn::LoadU(d8, reinterpret_cast<const int8_t*>(bytes) + i));
    hn::StoreU(hn::Mul(hn::ConvertTo(d, wide), hn::Set(d, scale)), d, values + i);
  }
  for (; i < count; ++i) values[i] = static_cast<float>(static_cast<int8_t>(bytes[i])) * scale;
}

float LargestMagnitude(const float* values, size_t count) {
  const F32 d;
  const size_t lanes = hn::Lanes(d);
  auto largest = hn::Zero(d);
  size_t i = 0;
  for (; i + lanes <= count; i += lanes) largest = hn::Max(largest, hn::Abs(hn::LoadU(d, values + i)));
  float result = hn::GetLane(hn::MaxOfLanes(d, largest));
  for (; i < count; ++i) result = std::fabs(values[i]) > result ? std::fabs(values[i]) : result;
  return result;
}

}  // namespace HWY_NAMESPACE
}  // namespace recon
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace recon {

HWY_EXPORT(EncodeInt8);
HWY_EXPORT(DecodeInt8);
HWY_EXPORT(LargestMagnitude);

float Int8Scale(const float* values, size_t count, EncodeStats* stats) {
  const uint64_t non_finite = CountNonFinite(values, count);
  stats->non_finite += non_finite;
  if (non_finite > 0) return 0;
  const float largest = HWY_DYNAMIC_DISPATCH(LargestMagnitude)(values, count);
  return largest < 0x1p-100f ? 0 : largest / 127.0f;
}

void EncodeInt8Page(const float* values, size_t count, float scale, uint32_t page_seed, uint8_t* out) {
  if (scale == 0) {
    std::memset(out, 0, count);
    return;
  }
  HWY_DYNAMIC_DISPATCH(EncodeInt8)(values, count, 1.0f / scale, page_seed, out);
}

void DecodeInt8(const uint8_t* bytes, size_t count, float scale, float* values) {
  HWY_DYNAMIC_DISPATCH(DecodeInt8)(bytes, count, scale, values);
}

}  // namespace recon
#endif  // HWY_ONCE
