#pragma once

// How one block of threads encodes one page, as code that runs on a GPU and, thread after thread, on a CPU:
// so that its logic is tested where there is no GPU. Plain C++17; FORMAT.md of common/codec has the rules,
// and the bytes are those of the CPU's encoder.
//
// Every step is `block.ForEach(f)`: f runs once for each thread, and all threads have run it before the next
// step. What outlives a step lies in PageShared. Block provides Add (atomic, on shared memory; returns the
// value before), Mark (sets a bit of the bitmap; all threads of a warp call it together, for consecutive
// indices), Floor, and the conversions of 16-bit floats. Compile without contraction of a*b+c.

#include <cstddef>
#include <cstdint>

#include "common/codec/random.h"
#include "common/codec/selection.h"
#include "common/codec/wire_format.h"
#include "worker/cuda/page_selection.h"
#include "worker/cuda/page_task.h"

namespace recon::cuda {

RECON_HOST_DEVICE inline uint32_t LebBytes(uint32_t value) {
  return value < 1u << 7 ? 1 : value < 1u << 14 ? 2 : 3;
}
RECON_HOST_DEVICE inline uint16_t Bf16Bits(float value) {
  const uint32_t bits = BitsOf(value);
  return static_cast<uint16_t>((bits + 0x7FFF + (bits >> 16 & 1)) >> 16);
}

RECON_HOST_DEVICE inline uint16_t SignOr(float value, uint32_t bits) {
  return static_cast<uint16_t>((BitsOf(value) >> 16 & 0x8000) | bits);
}

// How a page's values become FP16.
struct HalfScale {
  RECON_HOST_DEVICE explicit HalfScale(int page_exponent)
      : exponent(page_exponent),
        down(PowerOfTwo(-page_exponent)),
        up(PowerOfTwo(page_exponent)),
        range(HalfRangeFor(page_exponent)) {}

  int exponent;
  float down, up;
  HalfRange range;
};
RECON_HOST_DEVICE inline HalfRange Bf16Range() { return {0x7F7F8000, 0x8000}; }

// Counts a value out of range. True if it has to be cut, or is not finite.
RECON_HOST_DEVICE inline bool IsCut(float value, const HalfRange& range, OutOfRange* counts) {
  const uint32_t magnitude = MagnitudeBits(value);
  counts->underflown += magnitude != 0 && magnitude <= range.zero ? 1 : 0;
  if (magnitude < range.infinity) return false;
  ++(magnitude >= 0x7F800000 ? counts->non_finite : counts->saturated);
  return true;
}

template <typename Block>
class PageEncoder {
 public:
  RECON_HOST_DEVICE PageEncoder(Block& block, PageShared& shared, const PageTask& task,
                                const PageMemoryTable& memory, uint8_t* out)
      : block_(block),
        s_(shared),
        task_(task),
        memory_(memory),
        out_(out),
        gradient_(memory.gradient + task.offset),
        residual_(memory.residual != nullptr ? memory.residual + task.offset : nullptr),
        residual_bf16_(memory.residual_bf16 != nullptr ? memory.residual_bf16 + task.offset : nullptr),
        velocity_(memory.velocity != nullptr ? memory.velocity + task.offset : nullptr),
        sums_(task.add_residual && residual_ != nullptr ? residual_ : gradient_),
        seed_(HashIndex(memory.seed, task.number)),
        selection_(block, shared, task.count, sums_) {}

  RECON_HOST_DEVICE void Run(PageResult* result) {
    Begin();
    switch (task_.rule) {
      case PageRule::kFp32:
      case PageRule::kFp16:
      case PageRule::kBf16:
      case PageRule::kInt8:
        Accumulate(kNothing);
        EncodeDense(result);
        break;
      default:
        SelectAndPack(result);
        break;
    }
    Finish(result);
  }

 private:
  static constexpr uint32_t kNothing = 0xFFFFFFFF;  // No magnitude is that large.

  RECON_HOST_DEVICE void Begin() {
    block_.ForEach([&](uint32_t thread) {
      s_.kept[thread] = s_.sent[thread] = 0;
      if (thread == 0) s_.out_of_range = OutOfRange();
      if (thread == 0) s_.total = 0;
    });
  }

  RECON_HOST_DEVICE float SumAt(uint32_t i, float gradient, float kept) {
    if (!task_.add_residual) return gradient;
    if (velocity_ != nullptr && memory_.momentum > 0 && task_.rule >= PageRule::kTopK) {
      gradient = memory_.momentum * velocity_[i] + gradient;
      velocity_[i] = gradient;
    }
    return kept + gradient;
  }

  RECON_HOST_DEVICE float Kept(uint32_t i) const {
    if (!task_.add_residual || i >= task_.count) return 0;
    return residual_ != nullptr ? residual_[i] : FloatOf(static_cast<uint32_t>(residual_bf16_[i]) << 16);
  }

  // sums = gradient (+ residual); marks those with a magnitude of at least `magnitude_min`.
  RECON_HOST_DEVICE void Accumulate(uint32_t magnitude_min) {
    selection_.ClearBitmap();
    block_.ForEach([&](uint32_t thread) {
      uint32_t marked = 0;
      double squares = 0;
      for (uint32_t start = 0; start < task_.count; start += kBatch * kBlockThreads) {
        float gradient[kBatch], kept[kBatch];
        RECON_UNROLL
        for (uint32_t j = 0; j < kBatch; ++j) {
          const uint32_t i = start + j * kBlockThreads + thread;
          gradient[j] = i < task_.count ? gradient_[i] : 0;
          kept[j] = Kept(i);
        }
        float batch_squares = 0;
        RECON_UNROLL
        for (uint32_t j = 0; j < kBatch; ++j) {
          const uint32_t i = start + j * kBlockThreads + thread;
          float sum = 0;
          if (i < task_.count) {
            sum = SumAt(i, gradient[j], kept[j]);
            if (task_.add_residual) sums_[i] = sum;
          }
          batch_squares += sum * sum;
          marked += selection_.Mark(i, i < task_.count && MagnitudeBits(sum) >= magnitude_min);
        }
        squares += static_cast<double>(batch_squares);
      }
      s_.kept[thread] += squares;
      if (marked > 0) block_.Add(&s_.candidates, marked);
    });
  }

  RECON_HOST_DEVICE void SelectAndPack(PageResult* result) {
    uint32_t* guess = &memory_.guesses[task_.number];
    switch (task_.rule) {
      case PageRule::kTopK: {
        block_.ForEach([&](uint32_t thread) {
          if (thread == 0) s_.magnitude_min = *guess > 1 ? *guess : 1;  // A value of 0 is never sent.
        });
        Accumulate(s_.magnitude_min);
        const bool cut = selection_.PickLargest(task_.k);
        block_.ForEach([&](uint32_t thread) {
          // 6 % below the boundary, in the float's own (nearly logarithmic) steps.
          if (thread == 0)
            *guess = cut && s_.prefix > 1u << 23 && s_.prefix < 0x7F800000 ? s_.prefix - (1u << 19) : 1;
        });
        break;
      }
      case PageRule::kTopKSampled:
        Accumulate(kNothing);
        selection_.RadixSelect(task_.sample_rank, [&](uint32_t thread, const auto& add) {
          for (uint32_t i = thread * kSampleStride; i < task_.count; i += kBlockThreads * kSampleStride) {
            add(MagnitudeBits(sums_[i]));
          }
        });
        selection_.MarkFrom(s_.prefix == 0 ? 1 : s_.prefix);
        if (s_.candidates > 2 * task_.k) (void)selection_.PickLargest(2 * task_.k);
        break;
      case PageRule::kRandomK:
        Accumulate(kNothing);
        selection_.MarkAgain([&](uint32_t i, float sum) {
          return HashIndex(seed_, i) < task_.hash_limit && MagnitudeBits(sum) != 0;
        });
        break;
      default:
        Accumulate(task_.magnitude_min);
        break;
    }
    Pack(result);
  }

  RECON_HOST_DEVICE void Pack(PageResult* result) {
    // s_.bins[thread]: the marked index that the thread's first delta counts from, or -1.
    block_.ForEach([&](uint32_t thread) {
      uint32_t behind_last = 0;
      for (uint32_t word = thread * kWordsPerThread; word < (thread + 1) * kWordsPerThread; ++word) {
        if (s_.bitmap[word] != 0) behind_last = word * 32 + HighestBit(s_.bitmap[word]) + 1;
      }
      s_.scan[0][thread] = behind_last;
    });
    const uint32_t* behind = selection_.ScanLargest();
    block_.ForEach([&](uint32_t thread) { s_.bins[thread] = selection_.Before(behind, thread) - 1; });
    block_.ForEach([&](uint32_t thread) {
      uint32_t bytes = 0;
      int32_t previous = static_cast<int32_t>(s_.bins[thread]);
      selection_.EachMarked(thread, [&](uint32_t, uint32_t, uint32_t i) {
        bytes += LebBytes(static_cast<uint32_t>(static_cast<int32_t>(i) - previous - 1));
        previous = static_cast<int32_t>(i);
      });
      s_.scan[0][thread] = bytes;
    });
    const uint32_t* delta_ends = selection_.Scan();
    block_.ForEach(
        [&](uint32_t thread) { s_.bins[kBlockThreads + thread] = selection_.Before(delta_ends, thread); });
    block_.ForEach([&](uint32_t thread) {
      if (thread == 0) s_.total = delta_ends[kBlockThreads - 1];
    });
    const uint32_t delta_bytes = s_.total;
    block_.ForEach([&](uint32_t thread) {
      uint32_t marked = 0;
      for (uint32_t j = 0; j < kWordsPerThread; ++j)
        marked += PopCount(s_.bitmap[thread * kWordsPerThread + j]);
      s_.scan[0][thread] = marked;
    });
    const uint32_t* ends = selection_.Scan();
    const uint32_t entries = ends[kBlockThreads - 1];
    const uint32_t bitmap_bytes = (task_.count + 7) / 8;
    const IndexSize indices = SmallestCoding(task_.count, entries, delta_bytes);
    block_.ForEach([&](uint32_t thread) {
      WriteIndices(thread, indices.coding, selection_.Before(ends, thread), bitmap_bytes);
    });
    // The scan's results and the first bins are in use.
    uint32_t* const partial = s_.bins + 2 * kBlockThreads;
    block_.ForEach([&](uint32_t thread) {
      uint32_t largest = 0;
      selection_.EachMarked(thread, [&](uint32_t, uint32_t, uint32_t i) {
        const uint32_t magnitude = MagnitudeBits(sums_[i]);
        largest = magnitude > largest ? magnitude : largest;
      });
      partial[thread] = largest;
    });
    const HalfScale scale(ExponentFor(Largest(partial)));
    block_.ForEach(
        [&](uint32_t thread) { WriteValues(thread, selection_.Before(ends, thread), indices.bytes, scale); });
    block_.ForEach([&](uint32_t thread) {
      if (thread != 0) return;
      result->header.coding_and_entries = static_cast<uint32_t>(indices.coding) << 24 | entries;
      result->header.index_bytes = indices.bytes;
      result->body_bytes = indices.bytes + 2 * entries;
      result->exponent = scale.exponent;
    });
    if (residual_bf16_ != nullptr && task_.keep) {
      block_.ForEach([&](uint32_t thread) {
        selection_.EachValue(thread, sums_, [&](uint32_t i, float sum) {
          if (i < task_.count) residual_bf16_[i] = Bf16Bits(sum);
        });
      });
    }
  }

  RECON_HOST_DEVICE void WriteIndices(uint32_t thread, IndexCoding coding, uint32_t position,
                                      uint32_t bitmap_bytes) {
    if (coding == IndexCoding::kBitmap) {
      for (uint32_t byte = thread; byte < bitmap_bytes; byte += kBlockThreads) {
        out_[byte] = static_cast<uint8_t>(s_.bitmap[byte / 4] >> byte % 4 * 8);
      }
      return;
    }
    uint32_t at = coding == IndexCoding::kDelta ? s_.bins[kBlockThreads + thread] : 2 * position;
    int32_t previous = static_cast<int32_t>(s_.bins[thread]);
    if (coding == IndexCoding::kAll) return;
    selection_.EachMarked(thread, [&](uint32_t, uint32_t, uint32_t i) {
      if (coding == IndexCoding::kList) {
        out_[at++] = static_cast<uint8_t>(i);
        out_[at++] = static_cast<uint8_t>(i >> 8);
        return;
      }
      uint32_t delta = static_cast<uint32_t>(static_cast<int32_t>(i) - previous - 1);
      previous = static_cast<int32_t>(i);
      for (; delta >= 0x80; delta >>= 7) out_[at++] = static_cast<uint8_t>(0x80 | (delta & 0x7F));
      out_[at++] = static_cast<uint8_t>(delta);
    });
  }

  RECON_HOST_DEVICE void WriteValues(uint32_t thread, uint32_t position, uint32_t index_bytes,
                                     const HalfScale& scale) {
    OutOfRange counts;
    double sent = 0;
    double rounding = 0;
    selection_.EachMarked(thread, [&](uint32_t, uint32_t, uint32_t i) {
      const float sum = sums_[i];
      const uint16_t half = ToHalf(sum, scale, &counts);
      uint8_t* out = out_ + index_bytes + 2 * size_t{position++};
      out[0] = static_cast<uint8_t>(half);
      out[1] = static_cast<uint8_t>(half >> 8);
      sent += static_cast<double>(sum) * sum;
      if (!task_.keep) return;
      sums_[i] = sum - Block::HalfToFloat(half) * scale.up;
      rounding += static_cast<double>(sums_[i]) * sums_[i];
      if (velocity_ != nullptr && memory_.momentum > 0) velocity_[i] = 0;
    });
    // All sums' squares less those of what is sent are those of what is kept.
    s_.kept[thread] += rounding - sent;
    s_.sent[thread] = sent;
    NoteRange(counts);
  }

  RECON_HOST_DEVICE void NoteRange(const OutOfRange& counts) {
    if (counts.saturated > 0) block_.Add(&s_.out_of_range.saturated, counts.saturated);
    if (counts.underflown > 0 && !task_.keep) block_.Add(&s_.out_of_range.underflown, counts.underflown);
    if (counts.non_finite > 0) block_.Add(&s_.out_of_range.non_finite, counts.non_finite);
  }

  RECON_HOST_DEVICE void EncodeDense(PageResult* result) {
    float scale = 0;
    if (task_.rule == PageRule::kInt8) scale = FindScale();
    const float inverse = scale > 0 ? 1.0f / scale : 0;
    const HalfScale half(task_.rule == PageRule::kFp16 ? ExponentFor(LargestOfAll()) : 0);
    block_.ForEach([&](uint32_t thread) {
      OutOfRange counts;
      double rounding = 0;
      selection_.EachValue(thread, sums_, [&](uint32_t i, float sum) {
        if (i >= task_.count) return;
        const float decoded = WriteDense(i, sum, scale, inverse, half, &counts);
        if (!task_.add_residual) return;
        const float rest = task_.keep ? sum - decoded : 0;
        rounding += static_cast<double>(rest) * rest;
        if (residual_ != nullptr) residual_[i] = rest;
        if (residual_ == nullptr) residual_bf16_[i] = Bf16Bits(rest);
        if (velocity_ != nullptr) velocity_[i] = 0;
      });
      s_.sent[thread] = s_.kept[thread];
      s_.kept[thread] = rounding;
      NoteRange(counts);
    });
    block_.ForEach([&](uint32_t thread) {
      if (thread != 0) return;
      result->scale = scale;
      result->exponent = half.exponent;
      result->body_bytes = task_.count * (task_.rule == PageRule::kFp32   ? 4
                                          : task_.rule == PageRule::kInt8 ? 1
                                                                          : 2);
    });
  }

  // Writes one value; what it decodes to is returned.
  RECON_HOST_DEVICE float WriteDense(uint32_t i, float sum, float scale, float inverse, const HalfScale& half,
                                     OutOfRange* counts) const {
    switch (task_.rule) {
      case PageRule::kFp32:
        counts->non_finite += MagnitudeBits(sum) >= 0x7F800000 ? 1 : 0;
        reinterpret_cast<float*>(out_)[i] = sum;
        return sum;
      case PageRule::kBf16: {
        const uint16_t bits = ToBf16(sum, counts);
        reinterpret_cast<uint16_t*>(out_)[i] = bits;
        return FloatOf(static_cast<uint32_t>(bits) << 16);
      }
      case PageRule::kInt8: {
        float rounded = 0;
        if (scale > 0) {
          const float uniform = static_cast<float>(HashIndex(seed_, i) >> 8) * 0x1p-24f;
          rounded = Block::Floor(sum * inverse + uniform);
          rounded = rounded < -127.0f ? -127.0f : rounded > 127.0f ? 127.0f : rounded;
        }
        out_[i] = static_cast<uint8_t>(static_cast<int8_t>(rounded));
        return rounded * scale;
      }
      default: {
        const uint16_t bits = ToHalf(sum, half, counts);
        reinterpret_cast<uint16_t*>(out_)[i] = bits;
        return Block::HalfToFloat(bits) * half.up;
      }
    }
  }

  // The largest of a value of each thread.
  RECON_HOST_DEVICE uint32_t Largest(uint32_t* values) {
    for (uint32_t half = kBlockThreads / 2; half > 0; half /= 2) {
      block_.ForEach([&](uint32_t thread) {
        if (thread >= half) return;
        if (values[thread + half] > values[thread]) values[thread] = values[thread + half];
      });
    }
    return values[0];
  }

  // Bits of the largest magnitude of the sums.
  RECON_HOST_DEVICE uint32_t LargestOfAll() {
    block_.ForEach([&](uint32_t thread) {
      uint32_t largest = 0;
      selection_.EachValue(thread, sums_, [&](uint32_t, float sum) {
        const uint32_t magnitude = MagnitudeBits(sum);
        largest = magnitude > largest ? magnitude : largest;
      });
      s_.scan[0][thread] = largest;
    });
    return Largest(s_.scan[0]);
  }

  RECON_HOST_DEVICE float FindScale() {
    block_.ForEach([&](uint32_t thread) {
      OutOfRange counts;
      selection_.EachValue(thread, sums_, [&](uint32_t, float sum) {
        counts.non_finite += MagnitudeBits(sum) >= 0x7F800000 ? 1 : 0;
      });
      NoteRange(counts);
    });
    const float largest = FloatOf(LargestOfAll());
    return s_.out_of_range.non_finite > 0 || largest < 0x1p-100f ? 0 : largest / 127.0f;
  }

  RECON_HOST_DEVICE void Finish(PageResult* result) {
    for (uint32_t half = kBlockThreads / 2; half > 0; half /= 2) {
      block_.ForEach([&](uint32_t thread) {
        if (thread >= half) return;
        s_.sent[thread] += s_.sent[thread + half];
        s_.kept[thread] += s_.kept[thread + half];
      });
    }
    block_.ForEach([&](uint32_t thread) {
      if (thread != 0) return;
      result->out_of_range = s_.out_of_range;
      result->sent_squares = s_.sent[0];
      result->residual_squares = task_.add_residual && task_.keep && s_.kept[0] > 0 ? s_.kept[0] : 0;
    });
  }

  RECON_HOST_DEVICE uint16_t ToHalf(float value, const HalfScale& scale, OutOfRange* counts) const {
    const bool cut = IsCut(value, scale.range, counts);
    return cut ? SignOr(value, 0x7BFF) : Block::FloatToHalf(value * scale.down);
  }

  RECON_HOST_DEVICE uint16_t ToBf16(float value, OutOfRange* counts) const {
    return IsCut(value, Bf16Range(), counts) ? SignOr(value, 0x7F7F) : Bf16Bits(value);
  }

  Block& block_;
  PageShared& s_;
  const PageTask task_;
  const PageMemoryTable& memory_;
  uint8_t* const out_;
  float* const gradient_;
  float* const residual_;
  uint16_t* const residual_bf16_;
  float* const velocity_;
  float* const sums_;  // They stay where the residual will be, or in the gradient's place.
  const uint32_t seed_;
  PageSelection<Block> selection_;
};

}  // namespace recon::cuda
