#include "common/codec/sparse_codec.h"

#include <algorithm>
#include <cstring>

#include "absl/strings/str_cat.h"
#include "common/base/check.h"
#include "common/base/status_macros.h"
#include "common/codec/half_codec.h"
#include "common/codec/select_kernels.h"
#include "common/codec/selection.h"
#include "common/tensor/page.h"

namespace recon {
namespace {

static_assert(kPageParams == 65'536, "PagesOf() and 16-bit indices");
constexpr uint32_t kEntriesMask = 0xFFFFFF;

// Without branches: gaps are random.
uint32_t VarintBytes(uint32_t value) {
  return 1u + static_cast<uint32_t>(value >= 1u << 7) + static_cast<uint32_t>(value >= 1u << 14);
}

uint32_t DeltaBytes(absl::Span<const uint16_t> indices) {
  uint32_t bytes = 0;
  int previous = -1;
  for (const uint16_t index : indices) {
    bytes += VarintBytes(static_cast<uint32_t>(index - previous - 1));
    previous = index;
  }
  return bytes;
}

// `bytes` is DeltaBytes().
void AppendDeltas(absl::Span<const uint16_t> indices, uint32_t bytes, std::string* out) {
  const size_t at = out->size();
  out->resize(at + bytes + 2);  // Each is written as if it had three bytes.
  auto* to = reinterpret_cast<uint8_t*>(&(*out)[at]);
  int previous = -1;
  for (const uint16_t index : indices) {
    const auto delta = static_cast<uint32_t>(index - previous - 1);
    const uint32_t size = VarintBytes(delta);
    to[0] = static_cast<uint8_t>((delta & 0x7F) | (size > 1 ? 0x80 : 0));
    to[1] = static_cast<uint8_t>((delta >> 7 & 0x7F) | (size > 2 ? 0x80 : 0));
    to[2] = static_cast<uint8_t>(delta >> 14);
    to += size;
    previous = index;
  }
  out->resize(at + bytes);
}

void AppendBitmap(uint32_t page_size, absl::Span<const uint16_t> indices, std::string* out) {
  const size_t at = out->size();
  out->resize(at + (page_size + 7) / 8, '\0');
  for (const uint16_t index : indices) (*out)[at + index / 8] |= static_cast<char>(1 << index % 8);
}

// Reads the index bytes of one page.
class IndexReader {
 public:
  IndexReader(uint32_t page, uint32_t page_size, uint32_t entries)
      : page_(page), page_size_(page_size), entries_(entries) {}

  absl::Status Read(IndexCoding coding, const uint8_t* bytes, uint32_t size, uint16_t* out) const {
    switch (coding) {
      case IndexCoding::kAll:
        return Expect("entries", entries_, page_size_);
      case IndexCoding::kList:
        return List(bytes, out);
      case IndexCoding::kBitmap:
        return Bitmap(bytes, out);
      case IndexCoding::kDelta:
        break;
    }
    return Delta(bytes, size, out);
  }

  absl::Status Expect(absl::string_view field, uint64_t seen, uint64_t expected) const {
    return seen == expected ? absl::OkStatus() : Error(field, seen, absl::StrCat(expected));
  }
  absl::Status Error(absl::string_view field, uint64_t seen, absl::string_view expected) const {
    return absl::InvalidArgumentError(
        absl::StrCat("sparse page ", page_, ": ", field, " is ", seen, ", expected ", expected));
  }

 private:
  absl::Status OutOfOrder(uint32_t entry, int64_t index, int64_t previous) const {
    return Error(absl::StrCat("index of entry ", entry), static_cast<uint64_t>(index),
                 absl::StrCat(previous + 1, " to ", page_size_ - 1));
  }

  absl::Status List(const uint8_t* bytes, uint16_t* out) const {
    std::memcpy(out, bytes, entries_ * sizeof(uint16_t));
    int64_t previous = -1;
    for (uint32_t i = 0; i < entries_; ++i) {
      if (out[i] <= previous || out[i] >= page_size_) return OutOfOrder(i, out[i], previous);
      previous = out[i];
    }
    return absl::OkStatus();
  }

  absl::Status Bitmap(const uint8_t* bytes, uint16_t* out) const {
    uint32_t found = 0;
    for (uint32_t byte = 0; byte < (page_size_ + 7) / 8; ++byte) {
      for (uint32_t bits = bytes[byte]; bits != 0; bits &= bits - 1) {
        const uint32_t index = byte * 8 + static_cast<uint32_t>(__builtin_ctz(bits));
        if (index >= page_size_) return Error("bit of the bitmap", index, absl::StrCat("below ", page_size_));
        if (found == entries_) return Error("entries", entries_, "as many as the bitmap has ones");
        out[found++] = static_cast<uint16_t>(index);
      }
    }
    return Expect("ones of the bitmap", found, entries_);
  }

  absl::Status Delta(const uint8_t* bytes, uint32_t size, uint16_t* out) const {
    int64_t previous = -1;
    uint32_t at = 0;
    for (uint32_t i = 0; i < entries_; ++i) {
      uint32_t delta = 0;
      for (int shift = 0;; shift += 7) {
        if (at == size) return Error("index bytes", size, absl::StrCat("more: entry ", i, " is cut"));
        const uint8_t byte = bytes[at++];
        delta |= static_cast<uint32_t>(byte & 0x7F) << shift;
        if (byte < 0x80) {
          if (byte == 0 && shift > 0) return Error("last byte of a delta", 0, "not 0");
          break;
        }
        if (shift == 14) return Error("bytes of a delta", 4, "3 at most");
      }
      const int64_t index = previous + 1 + delta;
      if (index >= page_size_) return OutOfOrder(i, index, previous);
      out[i] = static_cast<uint16_t>(index);
      previous = index;
    }
    return Expect("index bytes", size, at);
  }

  const uint32_t page_;
  const uint32_t page_size_;
  const uint32_t entries_;
};

// Index bytes that `entries` in `coding` may take: from, to.
std::pair<uint32_t, uint32_t> IndexBytesRange(IndexCoding coding, uint32_t page_size, uint32_t entries) {
  switch (coding) {
    case IndexCoding::kAll:
      return {0, 0};
    case IndexCoding::kList:
      return {2 * entries, 2 * entries};
    case IndexCoding::kBitmap:
      return {(page_size + 7) / 8, (page_size + 7) / 8};
    case IndexCoding::kDelta:
      break;
  }
  return {entries, 3 * entries};
}

absl::Status CheckHeader(const IndexReader& page, const SparsePageHeader& header, uint32_t page_size) {
  const uint32_t coding = header.coding_and_entries >> 24;
  const uint32_t entries = header.coding_and_entries & kEntriesMask;
  if (coding > static_cast<uint32_t>(IndexCoding::kDelta))
    return page.Error("index coding", coding, "0 to 3");
  if (entries > page_size) return page.Error("entries", entries, absl::StrCat(page_size, " at most"));
  const auto [low, high] = IndexBytesRange(static_cast<IndexCoding>(coding), page_size, entries);
  if (header.index_bytes < low || header.index_bytes > high) {
    return page.Error("index bytes", header.index_bytes, absl::StrCat(low, " to ", high));
  }
  return absl::OkStatus();
}

struct Scratch {
  std::vector<uint16_t> indices = std::vector<uint16_t>(kPageParams);
  std::vector<float> values = std::vector<float>(kPageParams);
  std::vector<uint8_t> bytes = std::vector<uint8_t>(kPageParams * sizeof(float));
};

Scratch* ThreadScratch() {
  thread_local Scratch scratch;
  return &scratch;
}

}  // namespace

void SparseWriter::AddValues(const float* values, size_t count) {
  const CodecId codec = ValueCodec(codec_);
  const size_t at = bodies_.size();
  bodies_.resize(at + EncodedBytes(codec, count));
  auto* const out = reinterpret_cast<uint8_t*>(&bodies_[at]);
  if (!scaled_) {
    stats_.Add(Encode(codec, values, count, out));
    return;
  }
  RECON_CHECK(codec_ == CodecId::kSparseFp16);
  RECON_CHECK_EQ(headers_.size(), 1u, "a part has one exponent, and so one page");
  exponent_ = static_cast<int8_t>(ExponentFor(LargestMagnitudeBits(values, count)));
  stats_.Add(EncodeFp16(values, count, out, exponent_));
}

void SparseWriter::AddWholePage(uint32_t page_size, const float* values) {
  RECON_CHECK_LE(page_size, kPageParams);
  headers_.push_back({page_size, 0});
  AddValues(values, page_size);
}

void SparseWriter::AddPage(uint32_t page_size, absl::Span<const uint16_t> indices, const float* values) {
  RECON_CHECK_LE(page_size, kPageParams);
  RECON_CHECK_LE(indices.size(), page_size);
  RECON_CHECK(indices.empty() || indices.back() < page_size);
  if (indices.size() == page_size) return AddWholePage(page_size, values);
  const auto entries = static_cast<uint32_t>(indices.size());
  const uint32_t delta_bytes = DeltaBytes(indices);
  const auto [coding, index_bytes] = SmallestCoding(page_size, entries, delta_bytes);
  headers_.push_back({static_cast<uint32_t>(coding) << 24 | entries, index_bytes});
  if (coding == IndexCoding::kList) {
    bodies_.append(reinterpret_cast<const char*>(indices.data()), index_bytes);
  } else if (coding == IndexCoding::kBitmap) {
    AppendBitmap(page_size, indices, &bodies_);
  } else {
    AppendDeltas(indices, delta_bytes, &bodies_);
  }
  AddValues(values, entries);
}

std::string SparseWriter::Finish() {
  std::string payload;
  payload.reserve(bytes());
  payload.append(reinterpret_cast<const char*>(headers_.data()), headers_.size() * kSparsePageHeaderBytes);
  payload.append(bodies_);
  headers_.clear();
  bodies_.clear();
  return payload;
}

absl::Status ForEachSparsePage(CodecId codec, uint32_t count, const ByteChain& payload,
                               absl::FunctionRef<void(const SparsePage&)> sink, int exponent) {
  const uint32_t pages = PagesOf(count);
  if (payload.size() < pages * kSparsePageHeaderBytes) {
    return absl::InvalidArgumentError(absl::StrCat("sparse payload: ", payload.size(),
                                                   " bytes, the headers of ", pages, " pages need ",
                                                   pages * kSparsePageHeaderBytes));
  }
  const CodecId value_codec = ValueCodec(codec);
  Scratch* scratch = ThreadScratch();
  std::vector<SparsePageHeader> headers(pages);
  ByteReader reader(payload);
  uint64_t expected = pages * kSparsePageHeaderBytes;
  for (uint32_t page = 0; page < pages; ++page) {
    std::memcpy(&headers[page], reader.Read(kSparsePageHeaderBytes, scratch->bytes.data()),
                kSparsePageHeaderBytes);
    const uint32_t entries = headers[page].coding_and_entries & kEntriesMask;
    const auto page_size = static_cast<uint32_t>(std::min<size_t>(kPageParams, count - page * kPageParams));
    RECON_RETURN_IF_ERROR(CheckHeader(IndexReader(page, page_size, entries), headers[page], page_size));
    expected += headers[page].index_bytes + EncodedBytes(value_codec, entries);
  }
  if (payload.size() != expected) {
    return absl::InvalidArgumentError(
        absl::StrCat("sparse payload: ", payload.size(), " bytes, its page headers say ", expected));
  }
  for (uint32_t page = 0; page < pages; ++page) {
    SparsePage out;
    out.page = page;
    out.page_size = static_cast<uint32_t>(std::min<size_t>(kPageParams, count - page * kPageParams));
    const uint32_t entries = headers[page].coding_and_entries & kEntriesMask;
    const auto coding = static_cast<IndexCoding>(headers[page].coding_and_entries >> 24);
    const uint32_t index_bytes = headers[page].index_bytes;
    const IndexReader indices(page, out.page_size, entries);
    RECON_RETURN_IF_ERROR(indices.Read(coding, reader.Read(index_bytes, scratch->bytes.data()), index_bytes,
                                       scratch->indices.data()));
    if (entries == 0) continue;
    const uint8_t* values = reader.Read(EncodedBytes(value_codec, entries), scratch->bytes.data());
    if (!AllFinite(value_codec, values, entries)) {
      return absl::InvalidArgumentError(
          absl::StrCat("sparse page ", page, ": a value is infinite or not a number"));
    }
    Decode(value_codec, values, entries, scratch->values.data(), exponent);
    out.all = coding == IndexCoding::kAll;
    if (!out.all) out.indices = absl::MakeConstSpan(scratch->indices.data(), entries);
    out.values = absl::MakeConstSpan(scratch->values.data(), entries);
    sink(out);
  }
  return absl::OkStatus();
}

}  // namespace recon
