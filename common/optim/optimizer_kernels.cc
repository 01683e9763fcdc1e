#include "common/optim/optimizer_kernels.h"

#include <cmath>
#include <cstring>

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "common/optim/optimizer_kernels.cc"
#include "hwy/foreach_target.h"  // IWYU pragma: keep
//
#include "common/base/check.h"
#include "common/codec/codec.h"
#include "common/codec/half_codec-inl.h"
#include "common/codec/selection.h"
#include "hwy/cache_control.h"
#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace recon {
namespace HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

using V = hn::Vec<F32>;

// How a vector's worth of a gradient is read; `scale` is what FP16 values are times.
struct Fp32Gradient {
  static constexpr size_t kBytes = 4;
  static HWY_INLINE V Load(F32 d, const uint8_t* at, V /*scale*/) {
    return hn::LoadU(d, reinterpret_cast<const float*>(at));
  }
};
struct Fp16Gradient {
  static constexpr size_t kBytes = 2;
  static HWY_INLINE V Load(F32 d, const uint8_t* at, V scale) {
    const V value = hn::BitCast(d, BitsFromHalf(U32(), reinterpret_cast<const uint16_t*>(at)));
    return hn::Mul(value, scale);  // By a power of two: exact.
  }
};
struct Bf16Gradient {
  static constexpr size_t kBytes = 2;
  static HWY_INLINE V Load(F32 d, const uint8_t* at, V /*scale*/) {
    return hn::BitCast(d, BitsFromBf16(U32(), reinterpret_cast<const uint16_t*>(at)));
  }
};

// Parameters and state are on their way to the first-level cache so far ahead: hardware does not look beyond
// a memory page of 4 KiB. They leave it for memory, and do not push frames and code out of the larger caches:
// by the next push of a model that is larger than these, nothing of it would be left there anyway.
constexpr size_t kPrefetchParams = 256;

// What lies beyond an array's end is fetched, too, and not used.
HWY_INLINE void PrefetchOnce(const float* values) { __builtin_prefetch(values, /*rw=*/0, /*locality=*/0); }

// What is written of the new parameters, beside themselves. Put() gives the larger of `largest` and what was
// put: beyond kRoundsToInfinity, what was written is wrong.
struct NoReply {
  static constexpr size_t kBytes = 0;
  static constexpr uint32_t kRoundsToInfinity = 1;
  static HWY_INLINE hn::Vec<I32> Put(V /*params*/, uint8_t* /*at*/, hn::Vec<I32> largest) { return largest; }
};
template <typename Traits>
struct HalfReply {
  static constexpr size_t kBytes = 2;
  static constexpr uint32_t kRoundsToInfinity = Traits::kRoundsToInfinity;
  static HWY_INLINE hn::Vec<I32> Put(V params, uint8_t* at, hn::Vec<I32> largest) {
    const auto bits = hn::BitCast(U32(), params);
    Traits::Store(U32(), bits, reinterpret_cast<uint16_t*>(at));
    return hn::Max(largest, Magnitude(bits));
  }
};

// Where one vector's worth of values lies.
struct Pointers {
  float* params;
  float* state1;
  float* state2;
};

HWY_INLINE V ScaledGradient(F32 d, const UpdateCoefficients& c, V gradient, V p) {
  const V g = hn::Mul(gradient, hn::Set(d, c.gradient_scale));
  return hn::Add(g, hn::Mul(hn::Set(d, c.weight_decay), p));
}

// Update() writes state, and gives the new parameters.
struct Sgd {
  static HWY_INLINE V Update(F32 d, const UpdateCoefficients& c, V gradient, const Pointers& at) {
    const V p = hn::LoadU(d, at.params);
    const V g = ScaledGradient(d, c, gradient, p);
    return hn::Sub(p, hn::Mul(hn::Set(d, c.learning_rate), g));
  }
};

template <bool kNesterov>
struct Momentum {
  static HWY_INLINE V Update(F32 d, const UpdateCoefficients& c, V gradient, const Pointers& at) {
    const V p = hn::LoadU(d, at.params);
    const V g = ScaledGradient(d, c, gradient, p);
    const V mu = hn::Set(d, c.momentum);
    const V m = hn::Add(hn::Mul(mu, hn::LoadU(d, at.state1)), g);
    hn::StoreU(m, d, at.state1);
    const V direction = kNesterov ? hn::Add(g, hn::Mul(mu, m)) : m;
    return hn::Sub(p, hn::Mul(hn::Set(d, c.learning_rate), direction));
  }
};

struct Adam {
  static HWY_INLINE V Update(F32 d, const UpdateCoefficients& c, V gradient, const Pointers& at) {
    const V p = hn::LoadU(d, at.params);
    const V g = ScaledGradient(d, c, gradient, p);
    const V m = hn::Add(hn::Mul(hn::Set(d, c.beta1), hn::LoadU(d, at.state1)),
                        hn::Mul(hn::Set(d, c.one_minus_beta1), g));
    const V v = hn::Add(hn::Mul(hn::Set(d, c.beta2), hn::LoadU(d, at.state2)),
                        hn::Mul(hn::Mul(hn::Set(d, c.one_minus_beta2), g), g));
    hn::StoreU(m, d, at.state1);
    hn::StoreU(v, d, at.state2);
    const V denominator =
        hn::Add(hn::Mul(hn::Sqrt(v), hn::Set(d, c.inverse_sqrt_correction2)), hn::Set(d, c.epsilon));
    const V decayed = hn::Mul(p, hn::Set(d, c.decay_factor));
    return hn::Sub(decayed, hn::Div(hn::Mul(hn::Set(d, c.step_size), m), denominator));
  }
};

// Whether all of the reply is right; what is too large for its format, or no number, is not. It may be where
// the gradient is.
template <typename Rule, typename Gradient, typename Reply>
HWY_INLINE bool Run(const UpdateCoefficients& coefficients, const uint8_t* gradient, size_t count,
                    float* params, float* state1, float* state2, uint8_t* reply) {
  const UpdateCoefficients c = coefficients;  // Stores to parameters cannot change it: it stays in registers.
  const F32 d;
  const size_t lanes = hn::Lanes(d);
  const I32 di;
  const auto too_large = hn::Set(di, static_cast<int32_t>(Reply::kRoundsToInfinity));
  auto largest = hn::Zero(di);
  const V scale = hn::Set(d, c.encoded_scale);
  size_t i = 0;
  for (; i + lanes <= count; i += lanes) {
    PrefetchOnce(params + i + kPrefetchParams);
    if (state1 != nullptr) PrefetchOnce(state1 + i + kPrefetchParams);
    if (state2 != nullptr) PrefetchOnce(state2 + i + kPrefetchParams);
    if (Reply::kBytes > 0) PrefetchResults(reply + i * Reply::kBytes);
    const V updated =
        Rule::Update(d, c, Gradient::Load(d, gradient + i * Gradient::kBytes, scale),
                     {params + i, state1 ? state1 + i : nullptr, state2 ? state2 + i : nullptr});
    hn::StoreU(updated, d, params + i);
    largest = Reply::Put(updated, reply + i * Reply::kBytes, largest);
  }
  if (i == count) return hn::AllTrue(di, hn::Lt(largest, too_large));
  // The tail goes through padded copies, so that it is computed as every other value.
  const size_t bytes = (count - i) * sizeof(float);
  HWY_ALIGN uint8_t g[HWY_MAX_BYTES] = {}, r[HWY_MAX_BYTES] = {};
  HWY_ALIGN float p[HWY_MAX_BYTES / 4] = {}, s1[HWY_MAX_BYTES / 4] = {}, s2[HWY_MAX_BYTES / 4] = {};
  std::memcpy(g, gradient + i * Gradient::kBytes, (count - i) * Gradient::kBytes);
  std::memcpy(p, params + i, bytes);
  if (state1 != nullptr) std::memcpy(s1, state1 + i, bytes);
  if (state2 != nullptr) std::memcpy(s2, state2 + i, bytes);
  const V updated = Rule::Update(d, c, Gradient::Load(d, g, scale), {p, s1, s2});
  hn::Store(updated, d, p);
  largest = Reply::Put(updated, r, largest);
  std::memcpy(params + i, p, bytes);
  if (state1 != nullptr) std::memcpy(state1 + i, s1, bytes);
  if (state2 != nullptr) std::memcpy(state2 + i, s2, bytes);
  if (Reply::kBytes > 0) std::memcpy(reply + i * Reply::kBytes, r, (count - i) * Reply::kBytes);
  return hn::AllTrue(di, hn::Lt(largest, too_large));
}

template <typename Gradient, typename Reply>
HWY_INLINE bool RunRule(const UpdateCoefficients& c, const uint8_t* gradient, size_t count, float* params,
                        float* state1, float* state2, uint8_t* reply) {
  switch (c.kind) {
    case OptimizerKind::kSgd:
      return Run<Sgd, Gradient, Reply>(c, gradient, count, params, nullptr, nullptr, reply);
    case OptimizerKind::kMomentum:
      return Run<Momentum<false>, Gradient, Reply>(c, gradient, count, params, state1, nullptr, reply);
    case OptimizerKind::kNesterov:
      return Run<Momentum<true>, Gradient, Reply>(c, gradient, count, params, state1, nullptr, reply);
    case OptimizerKind::kAdam:
    case OptimizerKind::kAdamW:
      return Run<Adam, Gradient, Reply>(c, gradient, count, params, state1, state2, reply);
    case OptimizerKind::kMean:
      break;  // Nothing is updated by it (Shard::CloseStep).
  }
  return true;
}

template <typename Reply>
HWY_INLINE bool RunCodec(const UpdateCoefficients& c, CodecId codec, const uint8_t* gradient, size_t count,
                         float* params, float* state1, float* state2, uint8_t* reply) {
  switch (codec) {
    case CodecId::kFp16:
      return RunRule<Fp16Gradient, Reply>(c, gradient, count, params, state1, state2, reply);
    case CodecId::kBf16:
      return RunRule<Bf16Gradient, Reply>(c, gradient, count, params, state1, state2, reply);
    default:
      return RunRule<Fp32Gradient, Reply>(c, gradient, count, params, state1, state2, reply);
  }
}

void ApplyEncodedUpdate(const UpdateCoefficients& c, CodecId codec, const uint8_t* gradient, size_t count,
                        float* params, float* state1, float* state2) {
  RunCodec<NoReply>(c, codec, gradient, count, params, state1, state2, nullptr);
}

bool UpdateAndEncode(const UpdateCoefficients& c, CodecId codec, const uint8_t* gradient, size_t count,
                     float* params, float* state1, float* state2, CodecId reply_codec, uint8_t* reply) {
  return reply_codec == CodecId::kFp16
             ? RunCodec<HalfReply<Fp16Traits>>(c, codec, gradient, count, params, state1, state2, reply)
             : RunCodec<HalfReply<Bf16Traits>>(c, codec, gradient, count, params, state1, state2, reply);
}

template <typename Gradient>
HWY_INLINE void Add(const uint8_t* values, float factor, float weight, size_t count, float* sum) {
  const F32 d;
  const V scale = hn::Set(d, factor);
  const size_t lanes = hn::Lanes(d);
  const V w = hn::Set(d, weight);
  size_t i = 0;
  for (; i + lanes <= count; i += lanes) {
    const V value = Gradient::Load(d, values + i * Gradient::kBytes, scale);
    hn::StoreU(hn::Add(hn::LoadU(d, sum + i), hn::Mul(w, value)), d, sum + i);
  }
  if (i == count) return;
  HWY_ALIGN uint8_t rest[HWY_MAX_BYTES] = {};
  HWY_ALIGN float to[HWY_MAX_BYTES / 4] = {};
  std::memcpy(rest, values + i * Gradient::kBytes, (count - i) * Gradient::kBytes);
  std::memcpy(to, sum + i, (count - i) * sizeof(float));
  hn::Store(hn::Add(hn::Load(d, to), hn::Mul(w, Gradient::Load(d, rest, scale))), d, to);
  std::memcpy(sum + i, to, (count - i) * sizeof(float));
}

void AddWeightedEncoded(CodecId codec, int exponent, const uint8_t* values, float weight, size_t count,
                        float* sum) {
  const float factor = PowerOfTwo(exponent);
  switch (codec) {
    case CodecId::kFp16:
      return Add<Fp16Gradient>(values, factor, weight, count, sum);
    case CodecId::kBf16:
      return Add<Bf16Gradient>(values, factor, weight, count, sum);
    default:
      return Add<Fp32Gradient>(values, factor, weight, count, sum);
  }
}

// gradient[i] = rule(gradient[i], now[i] - old[i]), vector by vector; the tail through padded copies, so that
// it is computed as every other value.
template <typename Rule>
HWY_INLINE void Correct(const float* now, const float* old, size_t count, float* gradient, const Rule& rule) {
  const F32 d;
  const size_t lanes = hn::Lanes(d);
  size_t i = 0;
  for (; i + lanes <= count; i += lanes) {
    const V moved = hn::Sub(hn::LoadU(d, now + i), hn::LoadU(d, old + i));
    hn::StoreU(rule(hn::LoadU(d, gradient + i), moved), d, gradient + i);
  }
  if (i == count) return;
  const size_t bytes = (count - i) * sizeof(float);
  HWY_ALIGN float n[HWY_MAX_BYTES / 4] = {}, o[HWY_MAX_BYTES / 4] = {}, g[HWY_MAX_BYTES / 4] = {};
  std::memcpy(n, now + i, bytes);
  std::memcpy(o, old + i, bytes);
  std::memcpy(g, gradient + i, bytes);
  hn::StoreU(rule(hn::LoadU(d, g), hn::Sub(hn::LoadU(d, n), hn::LoadU(d, o))), d, g);
  std::memcpy(gradient + i, g, bytes);
}

void CorrectByGap(const float* now, const float* old, float inverse_step, size_t count, float* gradient) {
  const F32 d;
  const V one = hn::Set(d, 1.0f), inverse = hn::Set(d, inverse_step);
  Correct(now, old, count, gradient,
          [&](V g, V moved) { return hn::Div(g, hn::Add(one, hn::Mul(hn::Abs(moved), inverse))); });
}

void CompensateDelay(const float* now, const float* old, float lambda, size_t count, float* gradient) {
  const F32 d;
  const V factor = hn::Set(d, lambda);
  Correct(now, old, count, gradient,
          [&](V g, V moved) { return hn::Add(g, hn::Mul(g, hn::Mul(factor, hn::Mul(g, moved)))); });
}

}  // namespace HWY_NAMESPACE
}  // namespace recon
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace recon {

HWY_EXPORT(ApplyEncodedUpdate);
HWY_EXPORT(UpdateAndEncode);
HWY_EXPORT(AddWeightedEncoded);
HWY_EXPORT(CorrectByGap);
HWY_EXPORT(CompensateDelay);

namespace {

void CheckPlanes(const UpdateCoefficients& c, size_t count, const float* state1, const float* state2) {
  const int planes = count == 0 ? 0 : StatePlanes(c.kind);
  RECON_CHECK(planes < 1 || state1 != nullptr, "the optimizer has no first plane of state");
  RECON_CHECK(planes < 2 || state2 != nullptr, "the optimizer has no second plane of state");
}

}  // namespace

void ApplyUpdate(const UpdateCoefficients& c, const float* gradient, size_t count, float* params,
                 float* state1, float* state2) {
  ApplyEncodedUpdate(c, CodecId::kFp32, reinterpret_cast<const uint8_t*>(gradient), count, params, state1,
                     state2);
}

void ApplyEncodedUpdate(const UpdateCoefficients& c, CodecId codec, const uint8_t* gradient, size_t count,
                        float* params, float* state1, float* state2) {
  CheckPlanes(c, count, state1, state2);
  HWY_DYNAMIC_DISPATCH(ApplyEncodedUpdate)(c, codec, gradient, count, params, state1, state2);
}

uint64_t ApplyEncodedUpdate(const UpdateCoefficients& c, CodecId codec, const uint8_t* gradient, size_t count,
                            float* params, float* state1, float* state2, CodecId reply_codec,
                            uint8_t* reply) {
  CheckPlanes(c, count, state1, state2);
  if (HWY_DYNAMIC_DISPATCH(UpdateAndEncode)(c, codec, gradient, count, params, state1, state2, reply_codec,
                                            reply)) {
    return 0;
  }
  return Encode(reply_codec, params, count, reply).saturated;  // It knows what to do with them.
}

void AddWeighted(const float* values, float weight, size_t count, float* sum) {
  AddWeightedEncoded(CodecId::kFp32, 0, reinterpret_cast<const uint8_t*>(values), weight, count, sum);
}

void AddWeightedEncoded(CodecId codec, int exponent, const uint8_t* values, float weight, size_t count,
                        float* sum) {
  HWY_DYNAMIC_DISPATCH(AddWeightedEncoded)(codec, exponent, values, weight, count, sum);
}

void CorrectByGap(const float* now, const float* old, float inverse_step, size_t count, float* gradient) {
  HWY_DYNAMIC_DISPATCH(CorrectByGap)(now, old, inverse_step, count, gradient);
}

void CompensateDelay(const float* now, const float* old, float lambda, size_t count, float* gradient) {
  HWY_DYNAMIC_DISPATCH(CompensateDelay)(now, old, lambda, count, gradient);
}

void ApplyUpdateReference(const UpdateCoefficients& c, const float* gradient, size_t count, float* params,
                          float* state1, float* state2) {
  for (size_t i = 0; i < count; ++i) {
    const float p = params[i];
    const float g = gradient[i] * c.gradient_scale + c.weight_decay * p;
    switch (c.kind) {
      case OptimizerKind::kSgd:
        params[i] = p - c.learning_rate * g;
        break;
      case OptimizerKind::kMomentum:
        state1[i] = c.momentum * state1[i] + g;
        params[i] = p - c.learning_rate * state1[i];
        break;
      case OptimizerKind::kNesterov:
        state1[i] = c.momentum * state1[i] + g;
        params[i] = p - c.learning_rate * (g + c.momentum * state1[i]);
        break;
      case OptimizerKind::kAdam:
      case OptimizerKind::kAdamW:
        state1[i] = c.beta1 * state1[i] + c.one_minus_beta1 * g;
        state2[i] = c.beta2 * state2[i] + c.one_minus_beta2 * g * g;
        params[i] = p * c.decay_factor -
                    c.step_size * state1[i] / (std::sqrt(state2[i]) * c.inverse_sqrt_correction2 + c.epsilon);
        break;
      case OptimizerKind::kMean:
        break;
    }
  }
}

}  // namespace recon
#endif  // HWY_ONCE
