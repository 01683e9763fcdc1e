#include "common/codec/select_kernels.h"

#include <cstring>

#include "common/codec/selection.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "common/codec/select_kernels.cc"
#include "hwy/foreach_target.h"  // IWYU pragma: keep
#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace recon {
namespace HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

using F32 = hn::ScalableTag<float>;
using I32 = hn::RebindToSigned<F32>;
using V = hn::Vec<F32>;

constexpr size_t kPageValues = 65'536;

HWY_INLINE auto IsLarge(V values, hn::Vec<I32> below) {
  const I32 di;
  return hn::Gt(hn::And(hn::BitCast(di, values), hn::Set(di, 0x7FFFFFFF)), below);
}

// The positions of the ones among the first `words` words of a bitmap, ascending. A word has two at most
// nearly always: both are written without asking whether they are there.
HWY_INLINE size_t Positions(const uint8_t* bitmap, size_t words, uint32_t* out) {
  constexpr uint64_t kGuard = uint64_t{1} << 63;
  size_t found = 0;
  for (size_t word = 0; word < words; ++word) {
    uint64_t bits;
    std::memcpy(&bits, bitmap + word * sizeof(bits), sizeof(bits));
    const auto first = static_cast<uint32_t>(word * 64);
    const size_t ones = hwy::PopCount(bits);
    for (size_t i = 0; i < 2; ++i) {
      out[found + i] =
          first + static_cast<uint32_t>(hwy::Num0BitsBelowLS1Bit_Nonzero64(bits | (bits == 0 ? kGuard : 0)));
      bits &= bits - 1;
    }
    for (size_t i = 2; HWY_UNLIKELY(i < ones); ++i) {
      out[found + i] = first + static_cast<uint32_t>(hwy::Num0BitsBelowLS1Bit_Nonzero64(bits));
      bits &= bits - 1;
    }
    found += ones;
  }
  return found;
}

// `load(i)` gives, and writes back where it must, the vector of values at i; `one(i)` a single value. The
// pass over memory has no branches that depend on values: it writes a bitmap that stays in the first-level
// cache.
template <typename Load, typename One>
HWY_INLINE size_t SelectLoop(size_t count, uint32_t magnitude_min, uint32_t* selected, const Load& load,
                             const One& one) {
  const F32 d;
  const I32 di;
  const size_t lanes = hn::Lanes(d);
  const auto below = hn::Set(di, static_cast<int32_t>(magnitude_min) - 1);
  size_t found = 0;
  size_t i = 0;
  if (lanes >= 8) {  // A vector's mask fills whole bytes.
    HWY_ALIGN uint8_t bitmap[kPageValues / 8];
    const size_t whole = count / 64 * 64;
    for (; i < whole; i += lanes) hn::StoreMaskBits(di, IsLarge(load(i), below), bitmap + i / 8);
    found = Positions(bitmap, whole / 64, selected);
  } else {
    for (; i + lanes <= count; i += lanes) {
      const auto large = IsLarge(load(i), below);
      if (HWY_LIKELY(hn::AllFalse(di, large))) continue;
      HWY_ALIGN uint8_t bits[8] = {};
      hn::StoreMaskBits(di, large, bits);
      for (size_t lane = 0; lane < lanes; ++lane) {
        if (bits[0] >> lane & 1) selected[found++] = static_cast<uint32_t>(i + lane);
      }
    }
  }
  for (; i < count; ++i) {
    if (MagnitudeBits(one(i)) >= magnitude_min) selected[found++] = static_cast<uint32_t>(i);
  }
  return found;
}

size_t Select(const float* values, size_t count, uint32_t magnitude_min, uint32_t* selected) {
  const F32 d;
  return SelectLoop(
      count, magnitude_min, selected, [&](size_t i) { return hn::LoadU(d, values + i); },
      [&](size_t i) { return values[i]; });
}

size_t AccumulateAndSelect(const float* HWY_RESTRICT gradient, size_t count, uint32_t magnitude_min,
                           float* HWY_RESTRICT residual, uint32_t* selected) {
  const F32 d;
  return SelectLoop(
      count, magnitude_min, selected,
      [&](size_t i) {
        const V sum = hn::Add(hn::LoadU(d, residual + i), hn::LoadU(d, gradient + i));
        hn::StoreU(sum, d, residual + i);
        return sum;
      },
      [&](size_t i) { return residual[i] += gradient[i]; });
}

size_t AccumulateMomentumAndSelect(const float* HWY_RESTRICT gradient, size_t count, float momentum,
                                   uint32_t magnitude_min, float* HWY_RESTRICT velocity,
                                   float* HWY_RESTRICT residual, uint32_t* selected) {
  const F32 d;
  return SelectLoop(
      count, magnitude_min, selected,
      [&](size_t i) {
        const V v =
            hn::Add(hn::Mul(hn::Set(d, momentum), hn::LoadU(d, velocity + i)), hn::LoadU(d, gradient + i));
        hn::StoreU(v, d, velocity + i);
        const V sum = hn::Add(hn::LoadU(d, residual + i), v);
        hn::StoreU(sum, d, residual + i);
        return sum;
      },
      [&](size_t i) {
        velocity[i] = momentum * velocity[i] + gradient[i];
        return residual[i] += velocity[i];
      });
}

uint32_t LargestMagnitudeBits(const float* values, size_t count) {
  const I32 di;
  const size_t lanes = hn::Lanes(di);
  const auto mask = hn::Set(di, 0x7FFFFFFF);
  const auto* bits = reinterpret_cast<const int32_t*>(values);
  auto largest0 = hn::Zero(di), largest1 = hn::Zero(di);
  size_t i = 0;
  for (; i + 2 * lanes <= count; i += 2 * lanes) {
    largest0 = hn::Max(largest0, hn::And(hn::LoadU(di, bits + i), mask));
    largest1 = hn::Max(largest1, hn::And(hn::LoadU(di, bits + i + lanes), mask));
  }
  auto largest = static_cast<uint32_t>(hn::GetLane(hn::MaxOfLanes(di, hn::Max(largest0, largest1))));
  for (; i < count; ++i) largest = MagnitudeBits(values[i]) > largest ? MagnitudeBits(values[i]) : largest;
  return largest;
}

}  // namespace HWY_NAMESPACE
}  // namespace recon
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace recon {

HWY_EXPORT(Select);
HWY_EXPORT(AccumulateAndSelect);
HWY_EXPORT(AccumulateMomentumAndSelect);
HWY_EXPORT(LargestMagnitudeBits);

size_t Select(const float* values, size_t count, uint32_t magnitude_min, uint32_t* selected) {
  return HWY_DYNAMIC_DISPATCH(Select)(values, count, magnitude_min, selected);
}

size_t AccumulateAndSelect(const float* gradient, size_t count, uint32_t magnitude_min, float* residual,
                           uint32_t* selected) {
  return HWY_DYNAMIC_DISPATCH(AccumulateAndSelect)(gradient, count, magnitude_min, residual, selected);
}

size_t AccumulateMomentumAndSelect(const float* gradient, size_t count, float momentum,
                                   uint32_t magnitude_min, float* velocity, float* residual,
                                   uint32_t* selected) {
  return HWY_DYNAMIC_DISPATCH(AccumulateMomentumAndSelect)(gradient, count, momentum, magnitude_min, velocity,
                                                           residual, selected);
}

uint32_t LargestMagnitudeBits(const float* values, size_t count) {
  return HWY_DYNAMIC_DISPATCH(LargestMagnitudeBits)(values, count);
}

double SumOfSquares(const float* values, size_t count) {
  // Eight sums: the compiler vectorizes them, whatever the target.
  double sums[8] = {};
  size_t i = 0;
  for (; i + 8 <= count; i += 8) {
    for (size_t j = 0; j < 8; ++j) sums[j] += static_cast<double>(values[i + j]) * values[i + j];
  }
  for (size_t j = 0; i < count; ++i, ++j) sums[j] += static_cast<double>(values[i]) * values[i];
  return ((sums[0] + sums[1]) + (sums[2] + sums[3])) + ((sums[4] + sums[5]) + (sums[6] + sums[7]));
}

}  // namespace recon
#endif  // HWY_ONCE
