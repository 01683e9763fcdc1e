// Decoding of FP16 and BF16 vectors, for kernels of Highway: included once for each of its targets, after
// hwy/foreach_target.h.

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

// FP32 bits of a vector's worth of BF16 or FP16 values at `halves`, of any alignment.
template <class U32>
HWY_INLINE hn::Vec<U32> BitsFromBf16(U32 d, const uint16_t* halves) {
  return hn::ShiftLeft<16>(hn::PromoteTo(d, hn::LoadU(hn::Rebind<uint16_t, U32>(), halves)));
}

template <class U32>
HWY_INLINE hn::Vec<U32> BitsFromHalf(U32 d, const uint16_t* halves) {
  const hn::RebindToFloat<U32> df;
#if HWY_TARGET == HWY_AVX2 || HWY_TARGET == HWY_AVX3 || HWY_TARGET == HWY_AVX3_DL
  // One instruction. It sets a bit in NaNs that signal; receivers refuse NaNs.
  const hn::Rebind<hwy::float16_t, U32> d16;
  return hn::BitCast(d, hn::PromoteTo(df, hn::LoadU(d16, reinterpret_cast<const hwy::float16_t*>(halves))));
#else
  const auto half = hn::PromoteTo(d, hn::LoadU(hn::Rebind<uint16_t, U32>(), halves));
  const auto sign = hn::ShiftLeft<16>(hn::And(half, hn::Set(d, 0x8000u)));
  const auto shifted = hn::ShiftLeft<13>(hn::And(half, hn::Set(d, 0x7FFFu)));
  // Multiplying by 2^112 rebiases normals and normalizes subnormals, exactly.
  const auto scaled = hn::BitCast(d, hn::Mul(hn::BitCast(df, shifted), hn::Set(df, 5.192296858534828e33f)));
  const auto is_finite = hn::Lt(shifted, hn::Set(d, 0x7C00u << 13));
  const auto special = hn::Or(shifted, hn::Set(d, 0x7F800000u));
  return hn::Or(sign, hn::IfThenElse(is_finite, scaled, special));
#endif
}

}  // namespace HWY_NAMESPACE
}  // namespace recon
HWY_AFTER_NAMESPACE();

#endif
