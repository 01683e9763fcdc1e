// FP16 and BF16 vectors from FP32 and back, for kernels of Highway: included once for each of its targets,
// after hwy/foreach_target.h.

#if defined(RECON_COMMON_CODEC_HALF_CODEC_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef RECON_COMMON_CODEC_HALF_CODEC_INL_H_
#undef RECON_COMMON_CODEC_HALF_CODEC_INL_H_
#else
#define RECON_COMMON_CODEC_HALF_CODEC_INL_H_
#endif

#include <cstdint>

#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace recon {
namespace HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

using F32 = hn::ScalableTag<float>;
using U32 = hn::RebindToUnsigned<F32>;
using I32 = hn::RebindToSigned<F32>;
using U16 = hn::Rebind<uint16_t, F32>;
using VU32 = hn::Vec<U32>;

constexpr uint32_t kAbsMask = 0x7FFFFFFF;

// FP32 bits of a vector's worth of BF16 or FP16 values at `halves`, of any alignment.
HWY_INLINE VU32 BitsFromBf16(U32 d, const uint16_t* halves) {
  return hn::ShiftLeft<16>(hn::PromoteTo(d, hn::LoadU(U16(), halves)));
}

HWY_INLINE VU32 BitsFromHalf(U32 d, const uint16_t* halves) {
  const F32 df;
#if HWY_TARGET == HWY_AVX2 || HWY_TARGET == HWY_AVX3 || HWY_TARGET == HWY_AVX3_DL
  // One instruction. It sets a bit in NaNs that signal; receivers refuse NaNs.
  const hn::Rebind<hwy::float16_t, U32> d16;
  return hn::BitCast(d, hn::PromoteTo(df, hn::LoadU(d16, reinterpret_cast<const hwy::float16_t*>(halves))));
#else
  const auto half = hn::PromoteTo(d, hn::LoadU(U16(), halves));
  const auto sign = hn::ShiftLeft<16>(hn::And(half, hn::Set(d, 0x8000u)));
  const auto shifted = hn::ShiftLeft<13>(hn::And(half, hn::Set(d, 0x7FFFu)));
  // Multiplying by 2^112 rebiases normals and normalizes subnormals, exactly.
  const auto scaled = hn::BitCast(d, hn::Mul(hn::BitCast(df, shifted), hn::Set(df, 5.192296858534828e33f)));
  const auto is_finite = hn::Lt(shifted, hn::Set(d, 0x7C00u << 13));
  const auto special = hn::Or(shifted, hn::Set(d, 0x7F800000u));
  return hn::Or(sign, hn::IfThenElse(is_finite, scaled, special));
#endif
}

// FP32 bits -> FP16 bits in the low half, round to nearest even. `magnitude` is |x| bits, at most 65504.
// Integer arithmetic, for targets without F16C: Highway's emulation rounds otherwise.
HWY_INLINE VU32 HalfFromBits(U32 d, VU32 bits) {
  const auto sign = hn::ShiftRight<16>(hn::And(bits, hn::Set(d, 0x80000000u)));
  const auto magnitude = hn::And(bits, hn::Set(d, kAbsMask));
  // Normal: rebias the exponent (127 - 15 = 112), add half of the last kept bit less one, plus that bit.
  const auto odd = hn::And(hn::ShiftRight<13>(magnitude), hn::Set(d, 1u));
  const auto rebiased = hn::Sub(magnitude, hn::Set(d, 112u << 23));
  const auto normal = hn::ShiftRight<13>(hn::Add(hn::Add(rebiased, hn::Set(d, 0xFFFu)), odd));
  // Subnormal (|x| < 2^-14): adding 0.5 lets the FPU round to multiples of 2^-24.
  const F32 df;
  const auto magic = hn::Set(df, 0.5f);
  const auto shifted = hn::Add(hn::BitCast(df, magnitude), magic);
  const auto subnormal = hn::Sub(hn::BitCast(d, shifted), hn::BitCast(d, magic));
  const auto is_normal = hn::Ge(hn::BitCast(df, magnitude), hn::Set(df, 6.103515625e-05f));
  return hn::Or(sign, hn::IfThenElse(hn::RebindMask(d, is_normal), normal, subnormal));
}

// FP32 bits -> BF16 bits in the low half, round to nearest even.
HWY_INLINE VU32 Bf16FromBits(U32 d, VU32 bits) {
  const auto odd = hn::And(hn::ShiftRight<16>(bits), hn::Set(d, 1u));
  return hn::ShiftRight<16>(hn::Add(hn::Add(bits, hn::Set(d, 0x7FFFu)), odd));
}

// The low halves of the lanes, to `out`.
HWY_INLINE void StoreHalves(VU32 halves, uint16_t* out) {
  hn::StoreU(hn::DemoteTo(U16(), hn::BitCast(I32(), halves)), U16(), out);
}

// Store() rounds a vector of FP32 bits to nearest even; those of kRoundsToInfinity or more give anything, and
// the largest magnitude that becomes 0 has kRoundsToZero.
struct Fp16Traits {
  static constexpr uint32_t kRoundsToInfinity = 0x477FF000;  // 65520
  static constexpr uint32_t kRoundsToZero = 0x33000000;      // 2^-25
  static constexpr uint32_t kLargest = 0x477FE000;           // 65504
  static HWY_INLINE void Store(U32 d, VU32 bits, uint16_t* out) {
#if HWY_TARGET == HWY_AVX2 || HWY_TARGET == HWY_AVX3 || HWY_TARGET == HWY_AVX3_DL
    // One instruction (F16C) that rounds to nearest even.
    const hn::Rebind<hwy::float16_t, F32> d16;
    (void)d;
    hn::StoreU(hn::DemoteTo(d16, hn::BitCast(F32(), bits)), d16, reinterpret_cast<hwy::float16_t*>(out));
#else
    StoreHalves(HalfFromBits(d, bits), out);
#endif
  }
};
struct Bf16Traits {
  static constexpr uint32_t kRoundsToInfinity = 0x7F7F8000;
  static constexpr uint32_t kRoundsToZero = 0x8000;
  static constexpr uint32_t kLargest = 0x7F7F0000;
  static HWY_INLINE void Store(U32 d, VU32 bits, uint16_t* out) { StoreHalves(Bf16FromBits(d, bits), out); }
};

// The bits of |x|, which compare as |x| does.
HWY_INLINE hn::Vec<I32> Magnitude(VU32 bits) {
  return hn::BitCast(I32(), hn::And(bits, hn::Set(U32(), kAbsMask)));
}

// Where 16-bit results will be written so soon is on its way to the cache. What lies beyond their end is
// fetched, too.
HWY_INLINE void PrefetchResults(const void* at) {
  __builtin_prefetch(static_cast<const uint8_t*>(at) + 1024, /*rw=*/1);
}

}  // namespace HWY_NAMESPACE
}  // namespace recon
HWY_AFTER_NAMESPACE();

#endif
