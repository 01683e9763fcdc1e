#pragma once

// Which values of a page are sent: a bitmap in the block's shared memory, and how a block of threads sets and
// reads it. A part of page_encoder.h, which says what a Block is and how steps follow each other.

#include <cstdint>

#include "common/codec/selection.h"
#include "common/codec/wire_format.h"
#include "worker/cuda/page_task.h"

namespace recon::cuda {

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

// Marks values of a page by their magnitude, and visits them.
//
// All threads of the block make the same calls, in the same order; those that get `thread` are made within a
// step. `sums` has `count` values, kPageValues at most, and may be changed between two calls.
template <typename Block>
class PageSelection {
 public:
  RECON_HOST_DEVICE PageSelection(Block& block, PageShared& shared, uint32_t count, const float* sums)
      : block_(block), s_(shared), count_(count), sums_(sums) {}

  // Calls f(i, value) for the thread's values of an array, several loads under way at a time. All threads of
  // a warp call f together: i may be beyond the page, then the value is 0.
  template <typename F>
  RECON_HOST_DEVICE void EachValue(uint32_t thread, const float* values, const F& f) const {
    for (uint32_t start = 0; start < count_; start += kBatch * kBlockThreads) {
      float batch[kBatch];
      RECON_UNROLL
      for (uint32_t j = 0; j < kBatch; ++j) {
        const uint32_t i = start + j * kBlockThreads + thread;
        batch[j] = i < count_ ? values[i] : 0;
      }
      RECON_UNROLL
      for (uint32_t j = 0; j < kBatch; ++j) f(start + j * kBlockThreads + thread, batch[j]);
    }
  }

  // Marks none.
  RECON_HOST_DEVICE void ClearBitmap() {
    block_.ForEach([&](uint32_t thread) {
      for (uint32_t word = thread; word < kBitmapWords; word += kBlockThreads) s_.bitmap[word] = 0;
      if (thread == 0) s_.candidates = 0;
    });
  }

  // Within a step. Returns 1 if value i is marked now; s_.candidates counts it when the caller adds it.
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
                [&](uint32_t i, float sum) { marked += Mark(i, i < count_ && wanted(i, sum)); });
      if (marked > 0) block_.Add(&s_.candidates, marked);
    });
  }

  // Marks the sums with a magnitude of at least `magnitude_min`.
  RECON_HOST_DEVICE void MarkFrom(uint32_t magnitude_min) {
    MarkAgain([&](uint32_t, float sum) { return MagnitudeBits(sum) >= magnitude_min; });
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
  // What the threads before `thread` come to in `inclusive`, which a scan has returned.
  RECON_HOST_DEVICE static uint32_t Before(const uint32_t* inclusive, uint32_t thread) {
    return thread == 0 ? 0 : inclusive[thread - 1];
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

 private:
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

  Block& block_;
  PageShared& s_;
  const uint32_t count_;
  const float* const sums_;
};

}  // namespace recon::cuda
