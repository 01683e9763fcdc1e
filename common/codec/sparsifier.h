#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "common/codec/codec.h"
#include "common/codec/sparse_codec.h"

namespace recon {

// Which values of a page are sent; FORMAT.md has the exact rules.
enum class SparseRule { kTopK, kTopKSampled, kRandomK, kThreshold };

struct SparsifyOptions {
  SparseRule rule = SparseRule::kTopK;
  double ratio = 0.01;   // topk, randomk: share of the values, in (0, 1].
  float threshold = 0;   // threshold: smallest magnitude that is sent.
  bool feedback = true;  // Whether what is not sent is kept for the next push.
  float momentum = 0;    // Momentum correction with factor masking; 0 = off. Needs `velocity`.
};

// What an encoder keeps of one page from push to push. Pointers to `count` elements.
struct PageMemory {
  float* residual = nullptr;          // Either this,
  uint16_t* residual_bf16 = nullptr;  // or this; neither without feedback.
  float* velocity = nullptr;          // For momentum correction.
  // A guess of the magnitude from which values are sent (bits of a float), kept with the page: it makes the
  // next selection fast and changes no result. 0 = no guess yet.
  uint32_t* guess = nullptr;
};

// Selects and packs the values of gradients page by page, with error feedback (Seide et al., 2014;
// Karimireddy et al., ICML 2019) and momentum correction with factor masking (Lin et al., "Deep Gradient
// Compression", ICLR 2018, section 3.2).
//
// Threads: one. Memory: scratch for one page.
class Sparsifier {
 public:
  Sparsifier();

  // Adds `gradient` (`count` values, at most one page) to the page's memory, hands what is selected to `out`
  // as the next page, and leaves the rest in memory. Returns the sum of the squares of what was selected.
  double AddPage(const SparsifyOptions& options, const float* gradient, size_t count, uint32_t page_seed,
                 const PageMemory& memory, SparseWriter* out);

 private:
  // Indices of values of `sums` that are large enough, by a guess, into candidates_.
  void Accumulate(const SparsifyOptions& options, const float* gradient, size_t count,
                  const PageMemory& memory, uint32_t magnitude_min);
  void PickLargest(const float* sums, size_t count, size_t k, uint32_t* guess);

  std::vector<float> scratch_;
  std::vector<uint32_t> candidates_;
  size_t candidate_count_ = 0;
  std::vector<uint32_t> magnitudes_;
  std::vector<uint64_t> keys_;
  std::vector<uint16_t> indices_;
  std::vector<float> values_;
  std::vector<float> sent_;
  std::vector<uint8_t> encoded_;
  const float* sums_ = nullptr;
};

}  // namespace recon
