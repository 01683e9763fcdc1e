#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/types/span.h"
#include "common/base/byte_chain.h"
#include "common/codec/codec.h"
#include "common/codec/wire_format.h"

namespace recon {

// Payloads that name some values of each page; FORMAT.md has the grammar.

// Of a shard of `count` values.
inline constexpr uint32_t PagesOf(uint32_t count) {
  return static_cast<uint32_t>((uint64_t{count} + 65'535) / 65'536);
}

// Builds a payload page by page. One thread.
class SparseWriter {
 public:
  // `codec` is one of the sparse ones. `scaled`: the values of the one page that is added are divided by
  // 2^exponent() first, as ExponentFor() says; of sparse-fp16 only.
  explicit SparseWriter(CodecId codec, bool scaled = false) : codec_(codec), scaled_(scaled) {}

  // The next page, of `page_size` values. `indices` ascend; `values` are theirs. Encoding is counted in
  // stats().
  void AddPage(uint32_t page_size, absl::Span<const uint16_t> indices, const float* values);
  // A page of which every value follows: `page_size` of them.
  void AddWholePage(uint32_t page_size, const float* values);

  const EncodeStats& stats() const { return stats_; }
  int8_t exponent() const { return exponent_; }
  size_t bytes() const { return headers_.size() * kSparsePageHeaderBytes + bodies_.size(); }
  // The payload; the writer is empty afterwards.
  std::string Finish();

 private:
  void AddValues(const float* values, size_t count);

  const CodecId codec_;
  const bool scaled_;
  int8_t exponent_ = 0;
  EncodeStats stats_;
  std::vector<SparsePageHeader> headers_;
  std::string bodies_;
};

// One page as it is read.
struct SparsePage {
  uint32_t page = 0;
  uint32_t page_size = 0;
  bool all = false;                    // Every value: `indices` is empty.
  absl::Span<const uint16_t> indices;  // Ascending.
  absl::Span<const float> values;
};

// Reads a payload of a shard of `count` values, page by page in order; pages without entries are left out.
// Checks everything FORMAT.md says before it hands a page over. InvalidArgument at the first page that breaks
// a rule; the sink may have seen those before it. `exponent`: that of the part (PartHeader).
absl::Status ForEachSparsePage(CodecId codec, uint32_t count, const ByteChain& payload,
                               absl::FunctionRef<void(const SparsePage&)> sink, int exponent = 0);

}  // namespace recon
