#include "common/snapshot/plane_kernels.h"

#include <cstdint>
#include <cstring>

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "common/snapshot/plane_kernels.cc"
#include "hwy/foreach_target.h"  // IWYU pragma: keep
#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace recon {
namespace HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

using U8 = hn::ScalableTag<uint8_t>;

// Of each value the low bytes come first; the sign bit of the highest goes below the lowest's.
void Split(const float* values, size_t count, char* planes) {
  const U8 d;
  const size_t lanes = hn::Lanes(d);
  const auto* in = reinterpret_cast<const uint8_t*>(values);
  auto* out = reinterpret_cast<uint8_t*>(planes);
  const auto shift = [](auto high, auto low)
                         HWY_ATTR { return hn::Or(hn::ShiftLeft<1>(high), hn::ShiftRight<7>(low)); };
  size_t i = 0;
  for (; i + lanes <= count; i += lanes) {
    hn::Vec<U8> b0, b1, b2, b3;
    hn::LoadInterleaved4(d, in + i * 4, b0, b1, b2, b3);
    hn::StoreU(shift(b0, b3), d, out + i);
    hn::StoreU(shift(b1, b0), d, out + count + i);
    hn::StoreU(shift(b2, b1), d, out + 2 * count + i);
    hn::StoreU(shift(b3, b2), d, out + 3 * count + i);
  }
  for (; i < count; ++i) {
    uint32_t word;
    std::memcpy(&word, values + i, sizeof(word));
    word = word << 1 | word >> 31;
    for (size_t plane = 0; plane < kPlaneCount; ++plane) {
      out[plane * count + i] = static_cast<uint8_t>(word >> (8 * plane));
    }
  }
}

void Join(const uint8_t* p0, const uint8_t* p1, const uint8_t* p2, const uint8_t* p3, size_t count,
          float* values) {
  const U8 d;
  const size_t lanes = hn::Lanes(d);
  auto* out = reinterpret_cast<uint8_t*>(values);
  const auto shift = [](auto low, auto high)
                         HWY_ATTR { return hn::Or(hn::ShiftRight<1>(low), hn::ShiftLeft<7>(high)); };
  size_t i = 0;
  for (; i + lanes <= count; i += lanes) {
    const auto b0 = hn::LoadU(d, p0 + i);
    const auto b1 = hn::LoadU(d, p1 + i);
    const auto b2 = hn::LoadU(d, p2 + i);
    const auto b3 = hn::LoadU(d, p3 + i);
    hn::StoreInterleaved4(shift(b0, b1), shift(b1, b2), shift(b2, b3), shift(b3, b0), d, out + i * 4);
  }
  for (; i < count; ++i) {
    const uint32_t word = p0[i] | uint32_t{p1[i]} << 8 | uint32_t{p2[i]} << 16 | uint32_t{p3[i]} << 24;
    const uint32_t turned = word >> 1 | word << 31;
    std::memcpy(values + i, &turned, sizeof(turned));
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace recon
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace recon {

HWY_EXPORT(Split);
HWY_EXPORT(Join);

void SplitPlanes(const float* values, size_t count, char* planes) {
  HWY_DYNAMIC_DISPATCH(Split)(values, count, planes);
}

void JoinPlanes(const std::array<const char*, kPlaneCount>& planes, size_t count, float* values) {
  const auto bytes = [&](size_t plane) { return reinterpret_cast<const uint8_t*>(planes[plane]); };
  HWY_DYNAMIC_DISPATCH(Join)(bytes(0), bytes(1), bytes(2), bytes(3), count, values);
}

}  // namespace recon
#endif  // HWY_ONCE
