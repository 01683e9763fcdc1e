#pragma once

#include <cstddef>
#include <cstdint>

#include "common/codec/wire_format.h"
#include "common/optim/optimizer.h"

namespace recon {

// One update of `count` parameters in place. `state1` and `state2` are the optimizer's planes (null
// where StatePlanes() has fewer). Only additions, multiplications, divisions and square roots in a fixed
// order, each rounded on its own: every SIMD target gives the same bits. Thread-safe on disjoint ranges.
//
//   g  = gradient * gradient_scale + weight_decay * p
//   sgd       p -= lr * g
//   momentum  m = mu * m + g;  p -= lr * m
//   nesterov  m = mu * m + g;  p -= lr * (g + mu * m)
//   adam(w)   p *= decay_factor;  m = b1 m + (1-b1) g;  v = b2 v + (1-b2) g g
//             p -= step_size * m / (sqrt(v) * inverse_sqrt_correction2 + eps)
//
// Sources: Sutskever et al., ICML 2013 (momentum, Nesterov); Kingma and Ba, ICLR 2015 (Adam);
// Loshchilov and Hutter, ICLR 2019 (AdamW).
void ApplyUpdate(const UpdateCoefficients& c, const float* gradient, size_t count, float* params,
                 float* state1, float* state2);

// ApplyUpdate() with an encoded gradient, which is decoded in registers. Values of fp16 are multiplied by
// `c.encoded_scale`.
// `codec` is fp32, fp16 or bf16; `gradient` has any alignment.
void ApplyEncodedUpdate(const UpdateCoefficients& c, CodecId codec, const uint8_t* gradient, size_t count,
                        float* params, float* state1, float* state2);
// The same, and `reply` is what Encode() makes of the new parameters in `reply_codec`, fp16 or bf16. It may
// be where the gradient is, if that has as many bytes: values are read before what replaces them is written.
// Gives how many parameters were cut to the codec's largest value.
uint64_t ApplyEncodedUpdate(const UpdateCoefficients& c, CodecId codec, const uint8_t* gradient, size_t count,
                            float* params, float* state1, float* state2, CodecId reply_codec, uint8_t* reply);

// Gradients that were computed from `old` and are applied to `now`, in place; see StalenessCorrection.
//   gap-aware    gradient[i] /= 1 + |now[i] - old[i]| * inverse_step
//   compensated  gradient[i] += gradient[i] * (lambda * (gradient[i] * (now[i] - old[i])))
void CorrectByGap(const float* now, const float* old, float inverse_step, size_t count, float* gradient);
void CompensateDelay(const float* now, const float* old, float lambda, size_t count, float* gradient);

// ApplyUpdate() by plain scalar code; what the kernels are tested against.
void ApplyUpdateReference(const UpdateCoefficients& c, const float* gradient, size_t count, float* params,
                          float* state1, float* state2);

// sum[i] += weight * values[i], each operation rounded on its own.
void AddWeighted(const float* values, float weight, size_t count, float* sum);
// AddWeighted() with encoded values, in the codecs of ApplyEncodedUpdate(). Values of fp16 are multiplied by
// 2^exponent.
void AddWeightedEncoded(CodecId codec, int exponent, const uint8_t* values, float weight, size_t count,
                        float* sum);

}  // namespace recon
