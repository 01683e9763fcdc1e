#include "common/codec/sparsifier.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <functional>

#include "common/base/check.h"
#include "common/codec/half_codec.h"
#include "common/codec/random.h"
#include "common/codec/select_kernels.h"
#include "common/codec/selection.h"
#include "common/tensor/page.h"

namespace recon {
namespace {

constexpr size_t kSampleStride = 64;
constexpr uint32_t kLargestFiniteBits = 0x7F7FFFFF;
// A guess below the magnitude that is looked for, so that the next page's candidates are a few more than k.
constexpr double kGuessMargin = 0.96;
constexpr int kBinBits = 16;  // Of the 23 bits of a float's mantissa: 128 bins each time a magnitude doubles.
constexpr uint32_t kBins = 512;

uint32_t Scaled(uint32_t magnitude_bits, double factor) {
  // From what is not finite, the way down begins at the largest float.
  magnitude_bits = std::min(magnitude_bits, kLargestFiniteBits);
  return MagnitudeBits(static_cast<float>(FloatOf(magnitude_bits) * factor));
}

// How much the boundary grew since the page before, as the guess tells it: residuals grow at first.
double Growth(uint32_t guess, uint32_t boundary) {
  const float last = FloatOf(guess), now = FloatOf(boundary);
  const double growth = last > 0 ? kGuessMargin * now / last : 1.0;
  return growth > 1.0 ? std::min(growth, 1.2) : 1.0;  // 1 for NaN, too.
}

// The ceil(ratio * samples)-th largest magnitude among every 64th of the sums.
template <typename SumAt>
uint32_t SampledMagnitude(double ratio, size_t count, const SumAt& sum_at) {
  std::vector<uint32_t> samples;
  samples.reserve(count / kSampleStride + 1);
  for (size_t i = 0; i < count; i += kSampleStride) samples.push_back(MagnitudeBits(sum_at(i)));
  const size_t rank = ShareOf(ratio, static_cast<uint32_t>(samples.size())) - 1;
  std::nth_element(samples.begin(), samples.begin() + static_cast<ptrdiff_t>(rank), samples.end(),
                   std::greater<>());
  return samples[rank];
}

}  // namespace

Sparsifier::Sparsifier() : scratch_(kPageParams), candidates_(kPageParams + 2), magnitudes_(kPageParams) {}

void Sparsifier::Accumulate(const SparsifyOptions& options, const float* gradient, size_t count,
                            const PageMemory& memory, uint32_t magnitude_min) {
  if (!options.feedback) {
    sums_ = gradient;
    candidate_count_ = Select(gradient, count, magnitude_min, candidates_.data());
    return;
  }
  float* residual = memory.residual;
  if (residual == nullptr) {
    residual = scratch_.data();
    DecodeBf16(reinterpret_cast<const uint8_t*>(memory.residual_bf16), count, residual);
  }
  sums_ = residual;
  candidate_count_ = options.momentum > 0
                         ? AccumulateMomentumAndSelect(gradient, count, options.momentum, magnitude_min,
                                                       memory.velocity, residual, candidates_.data())
                         : AccumulateAndSelect(gradient, count, magnitude_min, residual, candidates_.data());
}

// Cuts the candidates to the k largest; of equal magnitudes the lower index stays.
void Sparsifier::PickLargest(const float* sums, size_t count, size_t k, uint32_t* guess) {
  RECON_CHECK(k >= 1 && k <= count);
  uint32_t magnitude_min = *guess;
  double step = 0.9;
  while (candidate_count_ < k) {  // The guess was too high.
    magnitude_min = magnitude_min < 1u << 23 ? 0 : Scaled(magnitude_min, step);
    step *= step;
    candidate_count_ = Select(sums, count, magnitude_min, candidates_.data());
  }
  // Bins of magnitudes, about 1 % wide and counted from the guess on; the last one has the rest.
  const auto bin_of = [&](uint32_t magnitude) {
    return std::min((magnitude - magnitude_min) >> kBinBits, kBins - 1);
  };
  uint32_t bins[kBins] = {};
  for (size_t i = 0; i < candidate_count_; ++i) {
    magnitudes_[i] = MagnitudeBits(sums[candidates_[i]]);
    ++bins[bin_of(magnitudes_[i])];
  }
  size_t above = 0;  // Candidates in higher bins than the one that has the k-th.
  uint32_t bin = kBins - 1;
  while (above + bins[bin] < k) above += bins[bin--];
  keys_.clear();
  for (size_t i = 0; i < candidate_count_; ++i) {
    if (bin_of(magnitudes_[i]) == bin) {
      keys_.push_back(static_cast<uint64_t>(magnitudes_[i]) << 16 | (65'535 - candidates_[i]));
    }
  }
  const auto kth = keys_.begin() + static_cast<ptrdiff_t>(k - above - 1);
  std::nth_element(keys_.begin(), kth, keys_.end(), std::greater<>());
  const uint64_t smallest = *kth;
  const auto boundary = static_cast<uint32_t>(smallest >> 16);
  *guess = Scaled(boundary, kGuessMargin * Growth(*guess, boundary));
  size_t kept = 0;
  for (size_t i = 0; i < candidate_count_; ++i) {
    const uint32_t index = candidates_[i];
    candidates_[kept] = index;
    kept += (static_cast<uint64_t>(magnitudes_[i]) << 16 | (65'535 - index)) >= smallest ? 1 : 0;
  }
  RECON_CHECK_EQ(kept, k, "no two values of a page have the same key");
  candidate_count_ = kept;
}

double Sparsifier::AddPage(const SparsifyOptions& options, const float* gradient, size_t count,
                           uint32_t page_seed, const PageMemory& memory, SparseWriter* out) {
  RECON_CHECK(count >= 1 && count <= kPageParams);
  RECON_CHECK(!options.feedback || memory.residual != nullptr || memory.residual_bf16 != nullptr);
  RECON_CHECK(!options.feedback || options.momentum <= 0 || memory.velocity != nullptr);
  const size_t k = ShareOf(options.ratio, static_cast<uint32_t>(count));
  uint32_t no_guess = 0;
  uint32_t* guess = memory.guess != nullptr ? memory.guess : &no_guess;
  switch (options.rule) {
    case SparseRule::kTopK:
      if (*guess == 0) {
        *guess = Scaled(SampledMagnitude(options.ratio, count, [&](size_t i) { return gradient[i]; }), 0.8);
      }
      Accumulate(options, gradient, count, memory, *guess);
      PickLargest(sums_, count, k, guess);
      break;
    case SparseRule::kTopKSampled: {
      // The sample is of the sums, so they have to be there first; the page is in the cache then.
      Accumulate(options, gradient, count, memory, 0x7FFFFFFF);
      uint32_t sampled = SampledMagnitude(options.ratio, count, [&](size_t i) { return sums_[i]; });
      candidate_count_ = Select(sums_, count, sampled, candidates_.data());
      if (candidate_count_ > 2 * k) PickLargest(sums_, count, 2 * k, &sampled);
      break;
    }
    case SparseRule::kRandomK: {
      Accumulate(options, gradient, count, memory, 0x7FFFFFFF);
      const double limit = options.ratio * 0x1p32;
      candidate_count_ = 0;
      for (uint32_t i = 0; i < count; ++i) {
        candidates_[candidate_count_] = i;
        candidate_count_ += HashIndex(page_seed, i) < limit ? 1 : 0;
      }
      break;
    }
    case SparseRule::kThreshold:
      Accumulate(options, gradient, count, memory, MagnitudeBits(options.threshold));
      break;
  }
  indices_.resize(candidate_count_);
  values_.resize(candidate_count_);
  size_t sent = 0;
  for (size_t i = 0; i < candidate_count_; ++i) {
    indices_[sent] = static_cast<uint16_t>(candidates_[i]);
    values_[sent] = sums_[candidates_[i]];
    sent += MagnitudeBits(values_[sent]) != 0 ? 1 : 0;
  }
  candidate_count_ = sent;
  indices_.resize(sent);
  out->AddPage(static_cast<uint32_t>(count), indices_, values_.data());
  const double sum_of_squares = SumOfSquares(values_.data(), sent);
  if (!options.feedback) return sum_of_squares;
  encoded_.resize(EncodedBytes(CodecId::kFp16, candidate_count_));
  sent_.resize(candidate_count_);
  EncodeFp16(values_.data(), candidate_count_, encoded_.data(), out->exponent());
  DecodeFp16(encoded_.data(), candidate_count_, sent_.data(), out->exponent());
  float* residual = memory.residual != nullptr ? memory.residual : scratch_.data();
  for (size_t i = 0; i < candidate_count_; ++i) residual[indices_[i]] = values_[i] - sent_[i];
  if (options.momentum > 0) {
    for (const uint16_t index : indices_) memory.velocity[index] = 0;
  }
  if (memory.residual_bf16 != nullptr) {
    EncodeBf16(residual, count, reinterpret_cast<uint8_t*>(memory.residual_bf16));
  }
  return sum_of_squares;
}

}  // namespace recon
