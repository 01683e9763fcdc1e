#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"

namespace recon {

// One page as a pack holds it; the grammar is in FORMAT.md. Lossless.

struct PageId {
  uint32_t shard = 0;
  uint32_t role = 0;
  uint32_t page = 0;
  uint64_t generation = 0;  // The snapshot it was written for.
};

// Byte planes of the values, each as it is stored smallest at little cost: weights have one plane, that of
// the exponents, that compresses, and only by its frequencies (common/DESIGN.md).
enum class PlaneCode : uint8_t { kRaw = 0, kZstd = 1 };

// What the planes of many pages came to.
struct PlaneStats {
  uint64_t raw_bytes[4] = {};  // From the least significant byte to the exponent.
  uint64_t stored_bytes[4] = {};
};

// Keeps compression contexts and scratch memory from page to page.
// Threads: used by one at a time.
class PageCodec {
 public:
  PageCodec();
  ~PageCodec();
  PageCodec(const PageCodec&) = delete;
  PageCodec& operator=(const PageCodec&) = delete;

  // Appends the page of `values` (at most kPageParams of them) to `out`. Level 1 codes planes by their
  // frequencies only, and by zstd's level 1 those with long repeats; above, all that compress by that level.
  void Encode(const PageId& id, absl::Span<const float> values, int level, std::string* out);

  // Fills `values` from an encoded page. DataLoss, saying what differs, unless magic, version, identity,
  // lengths, checksum and the hash (XXH3-128 of the raw bytes) are as expected.
  absl::Status Decode(absl::string_view bytes, const PageId& expected, absl::string_view hash,
                      absl::Span<float> values);

  // The planes of a page, without a header; what Decode() does once the checksum is right.
  absl::Status DecodePlanes(absl::string_view payload, absl::Span<float> values);

  // Of pages that were encoded or decoded; a raw page counts as four raw planes.
  const PlaneStats& stats() const { return stats_; }
  void AddStatsTo(PlaneStats* stats) const;
  void ClearStats() { stats_ = {}; }

 private:
  struct Contexts;
  absl::string_view EncodePlane(absl::string_view plane, int level, PlaneCode* code);

  std::unique_ptr<Contexts> contexts_;
  PlaneStats stats_;
};

}  // namespace recon
