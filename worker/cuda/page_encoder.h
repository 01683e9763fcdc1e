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

namespace recon::cuda {

inline constexpr uint32_t kPageValues = 65'536;
// Two blocks fit a multiprocessor: while one selects, the other reads.
inline constexpr uint32_t kBlockThreads = 512;
inline constexpr uint32_t kBitmapWords = kPageValues / 32;
inline constexpr uint32_t kWordsPerThread = kBitmapWords / kBlockThreads;
inline constexpr uint32_t kSampleStride = 64;
// Loads under way in one thread.
inline constexpr uint32_t kBatch = 8;

enum class PageRule : uint8_t { kFp32, kFp16, kBf16, kInt8, kTopK, kTopKSampled, kRandomK, kThreshold };

// What is to be done with one page.
struct PageTask {
  uint64_t offset = 0;  // Of its first value in the flat space.
  uint64_t out = 0;     // Where its bytes go in the output, aligned to 16.
  uint32_t count = 0;   // Values, at most kPageValues.
  uint32_t number = 0;  // Counting the pages of all shards in order: the page's part of the seed.
  PageRule rule = PageRule::kFp16;
  bool add_residual = false;  // The sum of gradient and residual is encoded.
  bool keep = false;          // What is not sent is the new residual; else that is 0, if it was added.
  uint32_t k = 0;             // topk: values to send.
  uint32_t sample_rank = 0;   // topk, sampled: the sample's magnitude of this rank (from 1) is the threshold.
  uint32_t magnitude_min = 0;  // threshold: bits of the smallest magnitude that is sent.
  uint64_t hash_limit = 0;     // randomk: values whose hash is lower are sent.
};

// What the encoder keeps on the device. Flat, as the layout; null where there is none.
struct PageMemoryTable {
  float* gradient = nullptr;  // Overwritten where it serves as scratch.
  float* residual = nullptr;
  uint16_t* residual_bf16 = nullptr;
  float* velocity = nullptr;
  uint32_t* guesses = nullptr;  // By page number.
  float momentum = 0;
  uint32_t seed = 0;  // Low word of the push's seed.
};

struct PageResult {
  SparsePageHeader header;  // Sparse rules only.
  uint32_t body_bytes = 0;
  float scale = 0;  // int8 only.
  uint32_t saturated = 0;
  uint32_t non_finite = 0;
  double sent_squares = 0;
  double residual_squares = 0;
};

// Shared memory of a block.
struct PageShared {
  uint32_t bitmap[kBitmapWords];
  uint32_t bins[kBitmapWords];
  uint32_t scan[2][kBlockThreads];
  double kept[kBlockThreads];  // Squares of all sums, then of what is kept back.
  double sent[kBlockThreads];  // Squares of what is sent.
  uint32_t candidates;
  uint32_t magnitude_min;
  uint32_t prefix;  // Of the magnitude that is looked for: its bits so far.
  uint32_t need;    // Values to take among those with the prefix.
  uint32_t bin;
  uint32_t saturated;
  uint32_t non_finite;
  uint32_t total;
};

#ifdef __CUDACC__
#define RECON_UNROLL _Pragma("unroll")
#else
#define RECON_UNROLL
#endif

#ifdef __CUDA_ARCH__
__device__ inline uint32_t PopCount(uint32_t bits) { return __popc(bits); }
__device__ inline uint32_t LowestBit(uint32_t bits) { return __ffs(static_cast<int>(bits)) - 1; }
__device__ inline uint32_t HighestBit(uint32_t bits) { return 31 - __clz(static_cast<int>(bits)); }
#else
inline uint32_t PopCount(uint32_t bits) { return static_cast<uint32_t>(__builtin_popcount(bits)); }
inline uint32_t LowestBit(uint32_t bits) { return static_cast<uint32_t>(__builtin_ctz(bits)); }
inline uint32_t HighestBit(uint32_t bits) { return 31u - static_cast<uint32_t>(__builtin_clz(bits)); }
#endif
RECON_HOST_DEVICE inline uint32_t LebBytes(uint32_t value) {
  return value < 1u << 7 ? 1 : value < 1u << 14 ? 2 : 3;
}
RECON_HOST_DEVICE inline uint16_t Bf16Bits(float value) {
  const uint32_t bits = BitsOf(value);
  return static_cast<uint16_t>((bits + 0x7FFF + (bits >> 16 & 1)) >> 16);
}

template <typename Block>
class PageEncoder {
 public:
  RECON_HOST_DEVICE PageEncoder(Block& block, PageShared& shared, const PageTask& task,
                                const PageMemoryTable& memory, uint8_t* out)
      : block_(block), s_(shared), task_(task), memory_(memory), out_(out) {
    gradient_ = memory.gradient + task.offset;
    residual_ = memory.residual != nullptr ? memory.residual + task.offset : nullptr;
    residual_bf16_ = memory.residual_bf16 != nullptr ? memory.residual_bf16 + task.offset : nullptr;
    velocity_ = memory.velocity != nullptr ? memory.velocity + task.offset : nullptr;
    // The sums stay where the residual will be, or in the gradient's place.
    sums_ = task.add_residual && residual_ != nullptr ? residual_ : gradient_;
    seed_ = HashIndex(memory.seed, task.number);
  }

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
      if (thread == 0) s_.saturated = s_.non_finite = s_.total = 0;
    });
  }

  // Calls f(i, value) for the thread's values of an array, several loads under way at a time. All threads of
  // a warp call f together: i may be beyond the page, then the value is 0.
  template <typename F>
  RECON_HOST_DEVICE void EachValue(uint32_t thread, const float* values, const F& f) const {
    for (uint32_t start = 0; start < task_.count; start += kBatch * kBlockThreads) {
      float batch[kBatch];
      RECON_UNROLL
      for (uint32_t j = 0; j < kBatch; ++j) {
        const uint32_t i = start + j * kBlockThreads + thread;
        batch[j] = i < task_.count ? values[i] : 0;
      }
      RECON_UNROLL
      for (uint32_t j = 0; j < kBatch; ++j) f(start + j * kBlockThreads + thread, batch[j]);
    }
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
    ClearBitmap();
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
          marked += Mark(i, i < task_.count && MagnitudeBits(sum) >= magnitude_min);
        }
        squares += static_cast<double>(batch_squares);
      }
      s_.kept[thread] += squares;
      if (marked > 0) block_.Add(&s_.candidates, marked);
    });
  }

  RECON_HOST_DEVICE void ClearBitmap() {
    block_.ForEach([&](uint32_t thread) {
      for (uint32_t word = thread; word < kBitmapWords; word += kBlockThreads) s_.bitmap[word] = 0;
      if (thread == 0) s_.candidates = 0;
    });
  }

  RECON_HOST_DEVICE uint32_t Mark(uint32_t i, bool wanted) {
    block_.Mark(s_.bitmap, i, wanted);
    return wanted ? 1 : 0;
  }

  // Marks the sums that `wanted(i, sum)` says.
  template <typename F>
  RECON_HOST_DEVICE void MarkAgain(const F& wanted) {
    ClearBitmap();
    block_.ForEach([&](uint32_t thread) {
      uint32_t marked = 0;
      EachValue(thread, sums_,
                [&](uint32_t i, float sum) { marked += Mark(i, i < task_.count && wanted(i, sum)); });
      if (marked > 0) block_.Add(&s_.candidates, marked);
    });
  }

  // Inclusive sums over the threads' values in s_.scan[0]; where they end up is returned.
  RECON_HOST_DEVICE const uint32_t* Scan() {
    uint32_t from = 0;
    for (uint32_t step = 1; step < kBlockThreads; step *= 2) {
      block_.ForEach([&](uint32_t thread) {
        const uint32_t before = thread >= step ? s_.scan[from][thread - step] : 0;
        s_.scan[1 - from][thread] = s_.scan[from][thread] + before;
      });
      from = 1 - from;
    }
    return s_.scan[from];
  }
  // The same with the larger of two values instead of their sum.
  RECON_HOST_DEVICE const uint32_t* ScanLargest() {
    uint32_t from = 0;
    for (uint32_t step = 1; step < kBlockThreads; step *= 2) {
      block_.ForEach([&](uint32_t thread) {
        const uint32_t before = thread >= step ? s_.scan[from][thread - step] : 0;
        const uint32_t own = s_.scan[from][thread];
        s_.scan[1 - from][thread] = own > before ? own : before;
      });
      from = 1 - from;
    }
    return s_.scan[from];
  }
  RECON_HOST_DEVICE static uint32_t Before(const uint32_t* inclusive, uint32_t thread) {
    return thread == 0 ? 0 : inclusive[thread - 1];
  }

  RECON_HOST_DEVICE static uint32_t BinFromTop(uint32_t thread, uint32_t j) {
    return kBitmapWords - 1 - (thread * kWordsPerThread + j);
  }

  // One digit of the magnitude of rank s_.need: counts digits with `count_digits`, then finds the bin that
  // has the rank, from the highest digit down.
  template <typename F>
  RECON_HOST_DEVICE void RadixStep(uint32_t shift, uint32_t digits, const F& count_digits) {
    block_.ForEach([&](uint32_t thread) {
      for (uint32_t bin = thread; bin < kBitmapWords; bin += kBlockThreads) s_.bins[bin] = 0;
    });
    block_.ForEach([&](uint32_t thread) {
      count_digits(thread, [&](uint32_t magnitude, bool first) {
        if (!first && magnitude >> (shift + 10) != s_.prefix) return;  // Its higher digits are others.
        block_.Add(&s_.bins[magnitude >> shift & (digits - 1)], 1u);
      });
    });
    // Each thread has a few bins, counted from the top.
    block_.ForEach([&](uint32_t thread) {
      uint32_t values = 0;
      for (uint32_t j = 0; j < kWordsPerThread; ++j) values += s_.bins[BinFromTop(thread, j)];
      s_.scan[0][thread] = values;
    });
    const uint32_t* inclusive = Scan();
    block_.ForEach([&](uint32_t thread) {
      uint32_t above = Before(inclusive, thread);
      if (above >= s_.need || inclusive[thread] < s_.need) return;  // Exactly one thread goes on.
      uint32_t j = 0;
      for (; above + s_.bins[BinFromTop(thread, j)] < s_.need; ++j) above += s_.bins[BinFromTop(thread, j)];
      s_.bin = BinFromTop(thread, j);
      s_.total = above;
    });
    block_.ForEach([&](uint32_t thread) {
      if (thread != 0) return;
      s_.need -= s_.total;
      s_.prefix = digits == 2048 ? s_.bin : s_.prefix << 10 | s_.bin;
    });
  }

  // The magnitude of rank `rank` (from 1, the largest first) among what `visit(thread, count)` visits goes to
  // s_.prefix; s_.need is how many of the values equal to it belong to the first `rank`.
  template <typename F>
  RECON_HOST_DEVICE void RadixSelect(uint32_t rank, const F& visit) {
    block_.ForEach([&](uint32_t thread) {
      if (thread == 0) s_.need = rank;
      if (thread == 0) s_.prefix = 0;
    });
    for (uint32_t level = 0; level < 3; ++level) {
      const uint32_t shift = level == 0 ? 20 : level == 1 ? 10 : 0;
      RadixStep(shift, level == 0 ? 2048 : 1024, [&](uint32_t thread, const auto& add) {
        visit(thread, [&](uint32_t magnitude) { add(magnitude, level == 0); });
      });
    }
  }

  // Cuts the marked values to the k of the largest magnitudes; of equal ones the lower index stays. False if
  // there were no more than k that are not 0: then all of them are marked.
  RECON_HOST_DEVICE bool PickLargest(uint32_t k) {
    for (uint32_t exponents = 1; s_.candidates < k && s_.magnitude_min > 1; exponents *= 16) {
      // Marked from too high a magnitude on: from a half of it, from a 16th of that, from anything but 0.
      const uint32_t less = exponents << 23;
      const bool again = exponents <= 16 && s_.magnitude_min > less;
      block_.ForEach([](uint32_t) {});  // All have read what is changed next.
      block_.ForEach([&](uint32_t thread) {
        if (thread == 0) s_.magnitude_min = again ? s_.magnitude_min - less : 1;
      });
      MarkFrom(s_.magnitude_min);
    }
    if (s_.candidates <= k) return false;
    RadixSelect(k, [&](uint32_t thread, const auto& add) {
      for (uint32_t word = thread; word < kBitmapWords; word += kBlockThreads) {
        for (uint32_t bits = s_.bitmap[word]; bits != 0; bits &= bits - 1) {
          add(MagnitudeBits(sums_[word * 32 + LowestBit(bits)]));
        }
      }
    });
    const uint32_t boundary = s_.prefix;
    const uint32_t need = s_.need;
    block_.ForEach([&](uint32_t thread) {
      uint32_t equal = 0;
      EachMarked(thread, [&](uint32_t, uint32_t, uint32_t i) {
        equal += MagnitudeBits(sums_[i]) == boundary ? 1 : 0;
      });
      s_.scan[0][thread] = equal;
    });
    const uint32_t* inclusive = Scan();
    block_.ForEach([&](uint32_t thread) {
      uint32_t rank = Before(inclusive, thread);
      EachMarked(thread, [&](uint32_t word, uint32_t bit, uint32_t i) {
        const uint32_t magnitude = MagnitudeBits(sums_[i]);
        if (magnitude > boundary) return;
        if (magnitude == boundary && rank++ < need) return;
        s_.bitmap[word] &= ~(1u << bit);
      });
    });
    return true;
  }

  // The marked values of the thread's own words, ascending.
  template <typename F>
  RECON_HOST_DEVICE void EachMarked(uint32_t thread, const F& f) const {
    for (uint32_t word = thread * kWordsPerThread; word < (thread + 1) * kWordsPerThread; ++word) {
      for (uint32_t bits = s_.bitmap[word]; bits != 0; bits &= bits - 1) {
        const uint32_t bit = LowestBit(bits);
        f(word, bit, word * 32 + bit);
      }
    }
  }

  RECON_HOST_DEVICE void SelectAndPack(PageResult* result) {
    uint32_t* guess = &memory_.guesses[task_.number];
    switch (task_.rule) {
      case PageRule::kTopK: {
        block_.ForEach([&](uint32_t thread) {
          if (thread == 0) s_.magnitude_min = *guess > 1 ? *guess : 1;  // A value of 0 is never sent.
        });
        Accumulate(s_.magnitude_min);
        const bool cut = PickLargest(task_.k);
        block_.ForEach([&](uint32_t thread) {
          // 6 % below the boundary, in the float's own (nearly logarithmic) steps.
          if (thread == 0)
            *guess = cut && s_.prefix > 1u << 23 && s_.prefix < 0x7F800000 ? s_.prefix - (1u << 19) : 1;
        });
        break;
      }
      case PageRule::kTopKSampled:
        Accumulate(kNothing);
        RadixSelect(task_.sample_rank, [&](uint32_t thread, const auto& add) {
          for (uint32_t i = thread * kSampleStride; i < task_.count; i += kBlockThreads * kSampleStride) {
            add(MagnitudeBits(sums_[i]));
          }
        });
        MarkFrom(s_.prefix == 0 ? 1 : s_.prefix);
        if (s_.candidates > 2 * task_.k) (void)PickLargest(2 * task_.k);
        break;
      case PageRule::kRandomK:
        Accumulate(kNothing);
        MarkAgain([&](uint32_t i, float sum) {
          return HashIndex(seed_, i) < task_.hash_limit && MagnitudeBits(sum) != 0;
        });
        break;
      default:
        Accumulate(task_.magnitude_min);
        break;
    }
    Pack(result);
  }

  RECON_HOST_DEVICE void MarkFrom(uint32_t magnitude_min) {
    MarkAgain([&](uint32_t, float sum) { return MagnitudeBits(sum) >= magnitude_min; });
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
    const uint32_t* behind = ScanLargest();
    block_.ForEach([&](uint32_t thread) { s_.bins[thread] = Before(behind, thread) - 1; });
    block_.ForEach([&](uint32_t thread) {
      uint32_t bytes = 0;
      int32_t previous = static_cast<int32_t>(s_.bins[thread]);
      EachMarked(thread, [&](uint32_t, uint32_t, uint32_t i) {
        bytes += LebBytes(static_cast<uint32_t>(static_cast<int32_t>(i) - previous - 1));
        previous = static_cast<int32_t>(i);
      });
      s_.scan[0][thread] = bytes;
    });
    const uint32_t* delta_ends = Scan();
    block_.ForEach([&](uint32_t thread) { s_.bins[kBlockThreads + thread] = Before(delta_ends, thread); });
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
    const uint32_t* ends = Scan();
    const uint32_t entries = ends[kBlockThreads - 1];
    const uint32_t bitmap_bytes = (task_.count + 7) / 8;
    const IndexSize indices = SmallestCoding(task_.count, entries, delta_bytes);
    block_.ForEach(
        [&](uint32_t thread) { WriteIndices(thread, indices.coding, Before(ends, thread), bitmap_bytes); });
    block_.ForEach([&](uint32_t thread) { WriteValues(thread, Before(ends, thread), indices.bytes); });
    block_.ForEach([&](uint32_t thread) {
      if (thread != 0) return;
      result->header.coding_and_entries = static_cast<uint32_t>(indices.coding) << 24 | entries;
      result->header.index_bytes = indices.bytes;
      result->body_bytes = indices.bytes + 2 * entries;
    });
    if (residual_bf16_ != nullptr && task_.keep) {
      block_.ForEach([&](uint32_t thread) {
        EachValue(thread, sums_, [&](uint32_t i, float sum) {
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
    EachMarked(thread, [&](uint32_t, uint32_t, uint32_t i) {
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

  RECON_HOST_DEVICE void WriteValues(uint32_t thread, uint32_t position, uint32_t index_bytes) {
    uint32_t saturated = 0;
    uint32_t non_finite = 0;
    double sent = 0;
    double rounding = 0;
    EachMarked(thread, [&](uint32_t, uint32_t, uint32_t i) {
      const float sum = sums_[i];
      const uint16_t half = ToHalf(sum, &saturated, &non_finite);
      uint8_t* out = out_ + index_bytes + 2 * size_t{position++};
      out[0] = static_cast<uint8_t>(half);
      out[1] = static_cast<uint8_t>(half >> 8);
      sent += static_cast<double>(sum) * sum;
      if (!task_.keep) return;
      sums_[i] = sum - Block::HalfToFloat(half);
      rounding += static_cast<double>(sums_[i]) * sums_[i];
      if (velocity_ != nullptr && memory_.momentum > 0) velocity_[i] = 0;
    });
    // All sums' squares less those of what is sent are those of what is kept.
    s_.kept[thread] += rounding - sent;
    s_.sent[thread] = sent;
    NoteRange(saturated, non_finite);
  }

  RECON_HOST_DEVICE void NoteRange(uint32_t saturated, uint32_t non_finite) {
    if (saturated > 0) block_.Add(&s_.saturated, saturated);
    if (non_finite > 0) block_.Add(&s_.non_finite, non_finite);
  }

  RECON_HOST_DEVICE void EncodeDense(PageResult* result) {
    float scale = 0;
    if (task_.rule == PageRule::kInt8) scale = FindScale();
    const float inverse = scale > 0 ? 1.0f / scale : 0;
    block_.ForEach([&](uint32_t thread) {
      uint32_t saturated = 0;
      uint32_t non_finite = 0;
      double rounding = 0;
      EachValue(thread, sums_, [&](uint32_t i, float sum) {
        if (i >= task_.count) return;
        const float decoded = WriteDense(i, sum, scale, inverse, &saturated, &non_finite);
        if (!task_.add_residual) return;
        const float rest = task_.keep ? sum - decoded : 0;
        rounding += static_cast<double>(rest) * rest;
        if (residual_ != nullptr) residual_[i] = rest;
        if (residual_ == nullptr) residual_bf16_[i] = Bf16Bits(rest);
        if (velocity_ != nullptr) velocity_[i] = 0;
      });
      s_.sent[thread] = s_.kept[thread];
      s_.kept[thread] = rounding;
      NoteRange(saturated, non_finite);
    });
    block_.ForEach([&](uint32_t thread) {
      if (thread != 0) return;
      result->scale = scale;
      result->body_bytes = task_.count * (task_.rule == PageRule::kFp32   ? 4
                                          : task_.rule == PageRule::kInt8 ? 1
                                                                          : 2);
    });
  }

  // Writes one value; what it decodes to is returned.
  RECON_HOST_DEVICE float WriteDense(uint32_t i, float sum, float scale, float inverse, uint32_t* saturated,
                                     uint32_t* non_finite) const {
    switch (task_.rule) {
      case PageRule::kFp32:
        *non_finite += MagnitudeBits(sum) >= 0x7F800000 ? 1 : 0;
        reinterpret_cast<float*>(out_)[i] = sum;
        return sum;
      case PageRule::kBf16: {
        const uint16_t bits = ToBf16(sum, saturated, non_finite);
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
        const uint16_t bits = ToHalf(sum, saturated, non_finite);
        reinterpret_cast<uint16_t*>(out_)[i] = bits;
        return Block::HalfToFloat(bits);
      }
    }
  }

  RECON_HOST_DEVICE float FindScale() {
    block_.ForEach([&](uint32_t thread) {
      uint32_t largest = 0;
      uint32_t non_finite = 0;
      EachValue(thread, sums_, [&](uint32_t, float sum) {
        const uint32_t magnitude = MagnitudeBits(sum);
        non_finite += magnitude >= 0x7F800000 ? 1 : 0;
        largest = magnitude > largest ? magnitude : largest;
      });
      s_.scan[0][thread] = largest;
      NoteRange(0, non_finite);
    });
    for (uint32_t half = kBlockThreads / 2; half > 0; half /= 2) {
      block_.ForEach([&](uint32_t thread) {
        if (thread >= half) return;
        const uint32_t other = s_.scan[0][thread + half];
        if (other > s_.scan[0][thread]) s_.scan[0][thread] = other;
      });
    }
    const float largest = FloatOf(s_.scan[0][0]);
    return s_.non_finite > 0 || largest < 0x1p-100f ? 0 : largest / 127.0f;
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
      result->saturated = s_.saturated;
      result->non_finite = s_.non_finite;
      result->sent_squares = s_.sent[0];
      result->residual_squares = task_.add_residual && task_.keep && s_.kept[0] > 0 ? s_.kept[0] : 0;
    });
  }

  RECON_HOST_DEVICE uint16_t ToHalf(float value, uint32_t* saturated, uint32_t* non_finite) const {
    const uint32_t magnitude = MagnitudeBits(value);
    if (magnitude >= 0x477FF000) {  // 65520: rounds to infinity.
      const bool bad = magnitude >= 0x7F800000;
      *non_finite += bad ? 1 : 0;
      *saturated += bad ? 0 : 1;
      return static_cast<uint16_t>((BitsOf(value) >> 16 & 0x8000) | 0x7BFF);
    }
    return Block::FloatToHalf(value);
  }

  RECON_HOST_DEVICE uint16_t ToBf16(float value, uint32_t* saturated, uint32_t* non_finite) const {
    const uint32_t magnitude = MagnitudeBits(value);
    if (magnitude >= 0x7F7F8000) {
      const bool bad = magnitude >= 0x7F800000;
      *non_finite += bad ? 1 : 0;
      *saturated += bad ? 0 : 1;
      return static_cast<uint16_t>((BitsOf(value) >> 16 & 0x8000) | 0x7F7F);
    }
    return Bf16Bits(value);
  }

  Block& block_;
  PageShared& s_;
  const PageTask task_;
  const PageMemoryTable& memory_;
  uint8_t* const out_;
  float* gradient_;
  float* residual_;
  uint16_t* residual_bf16_;
  float* velocity_;
  float* sums_;
  uint32_t seed_;
};

}  // namespace recon::cuda
