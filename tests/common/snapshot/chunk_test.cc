#include "common/snapshot/chunk.h"

#include "absl/strings/match.h"
#include "catch2/catch.hpp"

namespace recon {
namespace {

constexpr uint32_t kParams = kPageParams + 100;

std::vector<PageRef> Pages(size_t count) {
  std::vector<PageRef> pages;
  for (size_t i = 0; i < count; ++i) pages.push_back(PageRef::Zeroed());
  return pages;
}

// Weight-like values: a narrow range of exponents.
std::vector<PageRef> SamplePages() {
  std::vector<PageRef> pages = Pages(2);
  bool cloned;
  uint32_t state = 1;
  for (uint32_t i = 0; i < kParams; ++i) {
    state = state * 1664525 + 1013904223;
    pages[i / kPageParams].Writable(&cloned)[i % kPageParams] =
        (static_cast<float>(state >> 8) / 16777216.0f - 0.5f) * 0.1f;
  }
  return pages;
}

const ChunkId kId{4, 1, 9};

absl::Status Decode(absl::string_view bytes, const EncodedChunk& chunk, std::vector<PageRef>* pages) {
  return DecodeChunk(bytes, kId, kParams, chunk.page_hashes, pages);
}

}  // namespace

TEST_CASE("a chunk comes back bit for bit and is smaller than its values", "[chunk]") {
  const std::vector<PageRef> pages = SamplePages();
  const EncodedChunk chunk = EncodeChunk(kId, pages, kParams, 1);
  CHECK(chunk.raw_bytes == kParams * 4);
  CHECK(chunk.bytes.size() < chunk.raw_bytes);
  CHECK(chunk.page_hashes.size() == 2);
  std::vector<PageRef> read = Pages(2);
  REQUIRE(Decode(chunk.bytes, chunk, &read).ok());
  for (uint32_t i = 0; i < kParams; ++i) {
    REQUIRE(read[i / kPageParams].data()[i % kPageParams] == pages[i / kPageParams].data()[i % kPageParams]);
  }
}

TEST_CASE("a changed byte of a chunk never gets through", "[chunk]") {
  const EncodedChunk chunk = EncodeChunk(kId, SamplePages(), kParams, 1);
  std::vector<PageRef> read = Pages(2);
  for (size_t at = 0; at < chunk.bytes.size(); at += at < 64 ? 1 : 4099) {
    std::string altered = chunk.bytes;
    altered[at] = static_cast<char>(altered[at] ^ 0x10);
    INFO("byte " << at);
    CHECK(absl::IsDataLoss(Decode(altered, chunk, &read)));
  }
}

TEST_CASE("a chunk of any other length is refused", "[chunk]") {
  const EncodedChunk chunk = EncodeChunk(kId, SamplePages(), kParams, 1);
  std::vector<PageRef> read = Pages(2);
  for (size_t size = 0; size < chunk.bytes.size(); size += size < 64 ? 1 : 5003) {
    CHECK(absl::IsDataLoss(Decode(chunk.bytes.substr(0, size), chunk, &read)));
  }
  CHECK(absl::IsDataLoss(Decode(chunk.bytes + "x", chunk, &read)));
}

TEST_CASE("a chunk in the wrong place is refused with both names", "[chunk]") {
  const EncodedChunk chunk = EncodeChunk(kId, SamplePages(), kParams, 1);
  std::vector<PageRef> read = Pages(2);
  for (const ChunkId& other : {ChunkId{5, 1, 9}, ChunkId{4, 0, 9}, ChunkId{4, 1, 8}}) {
    CHECK(absl::IsDataLoss(DecodeChunk(chunk.bytes, other, kParams, chunk.page_hashes, &read)));
  }
  std::vector<std::string> hashes = chunk.page_hashes;
  std::swap(hashes[0], hashes[1]);
  const absl::Status status = DecodeChunk(chunk.bytes, kId, kParams, hashes, &read);
  CHECK(absl::IsDataLoss(status));
  CHECK(absl::StrContains(status.message(), "page 0"));
}

}  // namespace recon
