#pragma once

// What page_encoder.h is told of a page, what it answers, and what a block shares meanwhile. Plain C++17, for
// GPU and CPU.

#include <cstddef>
#include <cstdint>

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

// Values that a codec cannot have. What becomes 0 and is kept back is not counted.
struct OutOfRange {
  uint32_t saturated = 0;
  uint32_t underflown = 0;
  uint32_t non_finite = 0;
};

struct PageResult {
  SparsePageHeader header;  // Sparse rules only.
  uint32_t body_bytes = 0;
  float scale = 0;       // int8 only.
  int32_t exponent = 0;  // fp16 and sparse rules: PartHeader's.
  uint32_t largest = 0;  // Bits of the largest magnitude; where tiles need it.
  OutOfRange out_of_range;
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
  OutOfRange out_of_range;
  uint32_t total;
};

}  // namespace recon::cuda
