#include "common/codec/half_codec.h"

#include <cstring>

#include "common/codec/selection.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "common/codec/half_codec.cc"
#include "hwy/foreach_target.h"  // IWYU pragma: keep
//
#include "common/codec/half_codec-inl.h"
#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace recon {
namespace HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

// Encodes one vector to `out`; adds to the counts. `range` is that of the values before they are divided.
template <typename Traits, typename Divide>
HWY_INLINE void EncodeVector(U32 d, VU32 bits, const HalfRange& range, const Divide& divide, uint16_t* out,
                             EncodeStats* stats) {
  const I32 di;
  const auto magnitude = Magnitude(bits);
  const auto too_small = hn::Lt(magnitude, hn::Set(di, static_cast<int32_t>(range.zero) + 1));
  stats->underflown += hn::CountTrue(di, hn::And(too_small, hn::Gt(magnitude, hn::Zero(di))));
  const auto too_large = hn::Gt(magnitude, hn::Set(di, static_cast<int32_t>(range.infinity) - 1));
  auto divided = divide(bits);
  if (HWY_UNLIKELY(!hn::AllFalse(di, too_large))) {
    const auto non_finite = hn::Gt(magnitude, hn::Set(di, 0x7F800000 - 1));
    const uint64_t bad = hn::CountTrue(di, non_finite);
    stats->non_finite += bad;
    stats->saturated += hn::CountTrue(di, too_large) - bad;
    const auto sign = hn::And(bits, hn::Set(d, 0x80000000u));
    const auto largest = hn::Or(sign, hn::Set(d, Traits::kLargest));
    divided = hn::IfThenElse(hn::RebindMask(d, too_large), largest, divided);
  }
  Traits::Store(d, divided, out);
}

// Whether each of four vectors' values is 0, or rounds to neither 0 nor infinity.
HWY_INLINE bool AllFit(U32 d, VU32 b0, VU32 b1, VU32 b2, VU32 b3, const HalfRange& range) {
  const I32 di;
  const auto m0 = Magnitude(b0), m1 = Magnitude(b1), m2 = Magnitude(b2), m3 = Magnitude(b3);
  const auto largest = hn::Max(hn::Max(m0, m1), hn::Max(m2, m3));
  if (!hn::AllTrue(di, hn::Lt(largest, hn::Set(di, static_cast<int32_t>(range.infinity))))) return false;
  // Less 1, a 0 is the largest of all.
  const auto one = hn::Set(d, 1u);
  const auto less_one = [&](hn::Vec<I32> m) { return hn::Sub(hn::BitCast(d, m), one); };
  const auto smallest = hn::Min(hn::Min(less_one(m0), less_one(m1)), hn::Min(less_one(m2), less_one(m3)));
  return hn::AllFalse(d, hn::Lt(smallest, hn::Set(d, range.zero)));
}

// `divide` gives the bits of what is rounded, from a vector of those of the values.
template <typename Traits, typename Divide>
HWY_INLINE EncodeStats EncodeHalf(const float* HWY_RESTRICT values, size_t count, uint8_t* HWY_RESTRICT out,
                                  const HalfRange range, const Divide& divide) {
  const U32 d;
  const size_t lanes = hn::Lanes(d);
  const auto* bits = reinterpret_cast<const uint32_t*>(values);
  EncodeStats stats;
  size_t i = 0;
  // Four vectors at a time: about a cache line of results, and one look at whether any value is out of range.
  for (; i + 4 * lanes <= count; i += 4 * lanes) {
    PrefetchResults(out + 2 * i);
    const auto b0 = hn::LoadU(d, bits + i), b1 = hn::LoadU(d, bits + i + lanes);
    const auto b2 = hn::LoadU(d, bits + i + 2 * lanes), b3 = hn::LoadU(d, bits + i + 3 * lanes);
    auto* halves = reinterpret_cast<uint16_t*>(out) + i;
    if (HWY_LIKELY(AllFit(d, b0, b1, b2, b3, range))) {
      Traits::Store(d, divide(b0), halves);
      Traits::Store(d, divide(b1), halves + lanes);
      Traits::Store(d, divide(b2), halves + 2 * lanes);
      Traits::Store(d, divide(b3), halves + 3 * lanes);
    } else {
      EncodeVector<Traits>(d, b0, range, divide, halves, &stats);
      EncodeVector<Traits>(d, b1, range, divide, halves + lanes, &stats);
      EncodeVector<Traits>(d, b2, range, divide, halves + 2 * lanes, &stats);
      EncodeVector<Traits>(d, b3, range, divide, halves + 3 * lanes, &stats);
    }
  }
  for (; i + lanes <= count; i += lanes) {
    EncodeVector<Traits>(d, hn::LoadU(d, bits + i), range, divide, reinterpret_cast<uint16_t*>(out) + i,
                         &stats);
  }
  if (i < count) {
    HWY_ALIGN uint32_t in[HWY_MAX_BYTES / 4] = {};
    HWY_ALIGN uint16_t halves[HWY_MAX_BYTES / 4];
    std::memcpy(in, bits + i, (count - i) * sizeof(uint32_t));
    EncodeVector<Traits>(d, hn::Load(d, in), range, divide, halves, &stats);
    std::memcpy(out + 2 * i, halves, (count - i) * sizeof(uint16_t));
  }
  return stats;
}

template <typename Widen>
HWY_INLINE void DecodeHalf(const uint8_t* HWY_RESTRICT bytes, size_t count, float* HWY_RESTRICT out,
                           const Widen& widen) {
  const U32 d;
  const size_t lanes = hn::Lanes(d);
  auto* bits = reinterpret_cast<uint32_t*>(out);
  size_t i = 0;
  for (; i + lanes <= count; i += lanes) {
    hn::StoreU(widen(d, reinterpret_cast<const uint16_t*>(bytes) + i), d, bits + i);
  }
  if (i < count) {
    HWY_ALIGN uint16_t halves[HWY_MAX_BYTES / 4] = {};
    HWY_ALIGN uint32_t wide[HWY_MAX_BYTES / 4];
    std::memcpy(halves, bytes + 2 * i, (count - i) * sizeof(uint16_t));
    hn::Store(widen(d, halves), d, wide);
    std::memcpy(bits + i, wide, (count - i) * sizeof(float));
  }
}

template <typename Traits>
EncodeStats EncodeAsIs(const float* values, size_t count, uint8_t* out) {
  return EncodeHalf<Traits>(values, count, out, {Traits::kRoundsToInfinity, Traits::kRoundsToZero},
                            [](VU32 bits) { return bits; });
}

EncodeStats EncodeFp16(const float* values, size_t count, uint8_t* out, int exponent) {
  if (exponent == 0) return EncodeAsIs<Fp16Traits>(values, count, out);
  const float factor = PowerOfTwo(-exponent);
  return EncodeHalf<Fp16Traits>(values, count, out, HalfRangeFor(exponent), [factor](VU32 bits) {
    const F32 d;
    return hn::BitCast(U32(), hn::Mul(hn::BitCast(d, bits), hn::Set(d, factor)));
  });
}
EncodeStats EncodeBf16(const float* values, size_t count, uint8_t* out) {
  return EncodeAsIs<Bf16Traits>(values, count, out);
}
void DecodeFp16(const uint8_t* bytes, size_t count, float* out, int exponent) {
  if (exponent == 0) return DecodeHalf(bytes, count, out, BitsFromHalf);
  const float factor = PowerOfTwo(exponent);
  DecodeHalf(bytes, count, out, [factor](U32 d, const uint16_t* halves) {
    const F32 df;
    return hn::BitCast(d, hn::Mul(hn::BitCast(df, BitsFromHalf(d, halves)), hn::Set(df, factor)));
  });
}
void DecodeBf16(const uint8_t* bytes, size_t count, float* out) {
  DecodeHalf(bytes, count, out, BitsFromBf16);
}

// Numbers of `count` unsigned T whose bits under `mask` are all set.
template <typename T>
HWY_INLINE uint64_t CountMasked(const uint8_t* bytes, size_t count, T mask) {
  const hn::ScalableTag<T> d;
  const size_t lanes = hn::Lanes(d);
  const auto vector_mask = hn::Set(d, mask);
  uint64_t found = 0;
  size_t i = 0;
  for (; i + lanes <= count; i += lanes) {
    const auto value = hn::LoadU(d, reinterpret_cast<const T*>(bytes) + i);
    found += hn::CountTrue(d, hn::Eq(hn::And(value, vector_mask), vector_mask));
  }
  for (; i < count; ++i) {
    T value;
    std::memcpy(&value, bytes + i * sizeof(T), sizeof(T));
    found += (value & mask) == mask ? 1 : 0;
  }
  return found;
}

// Hardware does not look beyond a memory page of 4 KiB; what comes through shared memory is in no cache.
constexpr size_t kPrefetchBytes = 4096;
constexpr size_t kLineBytes = 64;

// What lies beyond an array's end is fetched, too, and not used.
HWY_INLINE void PrefetchRead(const void* at) {
  __builtin_prefetch(static_cast<const uint8_t*>(at) + kPrefetchBytes);
}

// Whether no unsigned T has all bits under `mask` set: the largest is what counts, one comparison at the end.
template <typename T>
HWY_INLINE bool NoneMasked(const uint8_t* bytes, size_t count, T mask) {
  const hn::ScalableTag<T> d;
  const size_t lanes = hn::Lanes(d);
  const auto vector_mask = hn::Set(d, mask);
  auto largest0 = hn::Zero(d), largest1 = hn::Zero(d);
  const auto* values = reinterpret_cast<const T*>(bytes);
  size_t i = 0;
  for (; i + 2 * lanes <= count; i += 2 * lanes) {
    PrefetchRead(values + i);
    if (2 * lanes * sizeof(T) > kLineBytes) PrefetchRead(values + i + lanes);
    largest0 = hn::Max(largest0, hn::And(hn::LoadU(d, values + i), vector_mask));
    largest1 = hn::Max(largest1, hn::And(hn::LoadU(d, values + i + lanes), vector_mask));
  }
  if (!hn::AllFalse(d, hn::Eq(hn::Max(largest0, largest1), vector_mask))) return false;
  return CountMasked<T>(bytes + i * sizeof(T), count - i, mask) == 0;
}

bool NoneMasked16(const uint8_t* bytes, size_t count, uint16_t mask) {
  return NoneMasked<uint16_t>(bytes, count, mask);
}
bool NoneMasked32(const uint8_t* bytes, size_t count, uint32_t mask) {
  return NoneMasked<uint32_t>(bytes, count, mask);
}
uint64_t CountMasked32(const uint8_t* bytes, size_t count, uint32_t mask) {
  return CountMasked<uint32_t>(bytes, count, mask);
}

}  // namespace HWY_NAMESPACE
}  // namespace recon
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace recon {

HWY_EXPORT(EncodeFp16);
HWY_EXPORT(EncodeBf16);
HWY_EXPORT(DecodeFp16);
HWY_EXPORT(DecodeBf16);
HWY_EXPORT(NoneMasked16);
HWY_EXPORT(NoneMasked32);
HWY_EXPORT(CountMasked32);

EncodeStats EncodeFp16(const float* values, size_t count, uint8_t* out, int exponent) {
  return HWY_DYNAMIC_DISPATCH(EncodeFp16)(values, count, out, exponent);
}
EncodeStats EncodeBf16(const float* values, size_t count, uint8_t* out) {
  return HWY_DYNAMIC_DISPATCH(EncodeBf16)(values, count, out);
}
void DecodeFp16(const uint8_t* bytes, size_t count, float* out, int exponent) {
  HWY_DYNAMIC_DISPATCH(DecodeFp16)(bytes, count, out, exponent);
}
void DecodeBf16(const uint8_t* bytes, size_t count, float* out) {
  HWY_DYNAMIC_DISPATCH(DecodeBf16)(bytes, count, out);
}
uint64_t CountNonFinite(const float* values, size_t count) {
  return HWY_DYNAMIC_DISPATCH(CountMasked32)(reinterpret_cast<const uint8_t*>(values), count, 0x7F800000u);
}
bool AllFinite16(const uint8_t* bytes, size_t count, uint16_t exponent_mask) {
  return HWY_DYNAMIC_DISPATCH(NoneMasked16)(bytes, count, exponent_mask);
}
bool AllFinite32(const uint8_t* bytes, size_t count) {
  return HWY_DYNAMIC_DISPATCH(NoneMasked32)(bytes, count, 0x7F800000u);
}

}  // namespace recon
#endif  // HWY_ONCE
