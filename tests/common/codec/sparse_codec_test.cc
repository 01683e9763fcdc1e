#include "common/codec/sparse_codec.h"

#include <cmath>
#include <cstring>
#include <random>

#include "absl/strings/match.h"
#include "catch2/catch.hpp"
#include "common/tensor/page.h"

namespace recon {
namespace {

std::vector<uint16_t> Every(uint32_t stride, uint32_t page_size) {
  std::vector<uint16_t> indices;
  for (uint32_t i = 0; i < page_size; i += stride) indices.push_back(static_cast<uint16_t>(i));
  return indices;
}

std::vector<float> Values(size_t count) {
  std::vector<float> values(count);
  for (size_t i = 0; i < count; ++i) values[i] = static_cast<float>(i % 1000) * 0.25f - 100;
  return values;
}

IndexCoding CodingOf(const std::string& payload) {
  SparsePageHeader header;
  std::memcpy(&header, payload.data(), sizeof(header));
  return static_cast<IndexCoding>(header.coding_and_entries >> 24);
}

// One page of eight values.
std::string Page(uint32_t coding, uint32_t entries, const std::string& index_bytes,
                 const std::string& values) {
  const SparsePageHeader header{coding << 24 | entries, static_cast<uint32_t>(index_bytes.size())};
  std::string payload(reinterpret_cast<const char*>(&header), sizeof(header));
  return payload + index_bytes + values;
}

std::string Halves(size_t count) { return std::string(2 * count, '\x3C'); }  // 1.06 each.

absl::Status Check(const std::string& payload, uint32_t count = 8, CodecId codec = CodecId::kSparseFp16) {
  return CheckPayload(codec, count, ByteChain::FromString(payload));
}

void Refused(const std::string& payload, const std::string& words) {
  const absl::Status status = Check(payload);
  INFO(status.message() << " | " << words);
  CHECK(absl::IsInvalidArgument(status));
  CHECK(absl::StrContains(status.message(), words));
}

}  // namespace

TEST_CASE("a sparse payload round-trips in every coding, and slices do not matter", "[sparse]") {
  struct Case {
    uint32_t stride;
    IndexCoding coding;
  };
  for (const Case& c :
       {Case{1, IndexCoding::kAll}, Case{2, IndexCoding::kBitmap}, Case{7, IndexCoding::kBitmap},
        Case{100, IndexCoding::kDelta}, Case{20'000, IndexCoding::kList}}) {
    for (const CodecId codec : {CodecId::kSparseFp32, CodecId::kSparseFp16, CodecId::kSparseBf16}) {
      INFO("every " << c.stride << "th value, codec " << CodecName(codec));
      const std::vector<uint16_t> indices = Every(c.stride, kPageParams);
      const std::vector<float> values = Values(indices.size());
      SparseWriter writer(codec);
      writer.AddPage(kPageParams, indices, values.data());
      writer.AddPage(kPageParams, {}, nullptr);
      writer.AddPage(777, {absl::MakeConstSpan(indices).first(c.stride == 1 ? 777 : 1)}, values.data());
      const size_t expected_bytes = writer.bytes();
      const std::string payload = writer.Finish();
      CHECK(payload.size() == expected_bytes);
      CHECK(CodingOf(payload) == c.coding);
      const uint32_t count = 2 * kPageParams + 777;
      CHECK(CheckPayloadBytes(codec, count, payload.size()).ok());
      for (const size_t cut : {payload.size(), size_t{1'000}, size_t{333}}) {
        ByteChain chain;
        for (size_t at = 0; at < payload.size(); at += cut)
          chain.Append(ByteChain::FromString(payload.substr(at, cut)));
        int pages = 0;
        const absl::Status status = ForEachSparsePage(codec, count, chain, [&](const SparsePage& page) {
          ++pages;
          CHECK(page.page != 1);  // Without entries.
          if (page.page != 0) return;
          CHECK(page.all == (c.stride == 1));
          if (!page.all)
            CHECK(std::equal(indices.begin(), indices.end(), page.indices.begin(), page.indices.end()));
          REQUIRE(page.values.size() == values.size());
          for (size_t i = 0; i < values.size(); ++i)
            REQUIRE(page.values[i] == Approx(values[i]).epsilon(0.01));
        });
        CHECK(status.ok());
        CHECK(pages == 2);
      }
    }
  }
}

TEST_CASE("the smallest coding is chosen, of equal ones the lower number", "[sparse]") {
  // 1 index: list 2 bytes, bitmap 1 byte for 8 values, delta 1 byte.
  SparseWriter small(CodecId::kSparseFp16);
  const std::vector<uint16_t> one = {5};
  const float value = 1;
  small.AddPage(8, one, &value);
  CHECK(CodingOf(small.Finish()) == IndexCoding::kBitmap);
  SparseWriter far(CodecId::kSparseFp16);
  const std::vector<uint16_t> distant = {500};
  far.AddPage(kPageParams, distant, &value);
  CHECK(CodingOf(far.Finish()) == IndexCoding::kList);  // 2 bytes either way.
}

TEST_CASE("golden bytes of a sparse payload", "[sparse]") {
  SparseWriter writer(CodecId::kSparseFp16);
  const std::vector<uint16_t> indices = {0, 130, 131, 300};
  const std::vector<float> values = {1, -2, 0.5f, 65504};
  writer.AddPage(60'000, indices, values.data());
  const std::string golden(
      "\x04\x00\x00\x03\x06\x00\x00\x00"  // Delta, 4 entries, 6 index bytes.
      "\x00\x81\x01\x00\xA8\x01"          // 0, then gaps - 1: 129, 0, 168.
      "\x00\x3C\x00\xC0\x00\x38\xFF\x7B",
      22);
  CHECK(writer.Finish() == golden);
}

TEST_CASE("what breaks a rule of the format is refused by name, with both numbers", "[sparse]") {
  REQUIRE(Check(Page(1, 2, std::string("\x01\x00\x07\x00", 4), Halves(2))).ok());
  REQUIRE(Check(Page(2, 2, "\x81", Halves(2))).ok());
  REQUIRE(Check(Page(3, 2, std::string("\x01\x05", 2), Halves(2))).ok());
  REQUIRE(Check(Page(0, 8, "", Halves(8))).ok());

  Refused("", "0 bytes, the headers of 1 pages need 8");
  Refused(Page(4, 1, "\x01", Halves(1)), "index coding is 4, expected 0 to 3");
  Refused(Page(1, 9, std::string(18, '\0'), Halves(9)), "entries is 9, expected 8 at most");
  Refused(Page(0, 7, "", Halves(7)), "entries is 7, expected 8");
  Refused(Page(1, 2, std::string("\x01\x00\x07", 3), Halves(2)), "index bytes is 3, expected 4 to 4");
  Refused(Page(1, 2, std::string("\x01\x00\x08\x00", 4), Halves(2)),
          "index of entry 1 is 8, expected 2 to 7");
  Refused(Page(1, 2, std::string("\x03\x00\x03\x00", 4), Halves(2)),
          "index of entry 1 is 3, expected 4 to 7");
  Refused(Page(1, 2, std::string("\x03\x00\x01\x00", 4), Halves(2)),
          "index of entry 1 is 1, expected 4 to 7");
  Refused(Page(2, 2, "\x80", Halves(2)), "ones of the bitmap is 1, expected 2");
  Refused(Page(2, 1, "\x81", Halves(1)), "entries is 1, expected as many as the bitmap has ones");
  Refused(Page(2, 1, "", Halves(1)), "index bytes is 0, expected 1 to 1");
  Refused(Page(3, 2, std::string("\x01\x06", 2), Halves(2)), "index of entry 1 is 8, expected 2 to 7");
  Refused(Page(3, 2, std::string("\x01\x85", 2), Halves(2)), "entry 1 is cut");
  Refused(Page(3, 2, std::string("\x01\x85\x00", 3), Halves(2)), "last byte of a delta is 0");
  Refused(Page(3, 1, std::string("\x01\x05", 2), Halves(1)), "index bytes is 2, expected 1");
  Refused(Page(1, 2, std::string("\x01\x00\x07\x00", 4), Halves(3)), "18 bytes, its page headers say 16");
  Refused(Page(1, 1, std::string("\x01\x00", 2), std::string("\x00\x7C", 2)), "infinite or not a number");
  Refused(Page(1, 1, std::string("\x01\x00", 2), std::string("\x01\x7E", 2)), "infinite or not a number");
}

TEST_CASE("every truncation of a sparse payload is refused", "[sparse]") {
  SparseWriter writer(CodecId::kSparseFp16);
  const std::vector<uint16_t> indices = Every(50, 2000);
  writer.AddPage(2000, indices, Values(indices.size()).data());
  const std::string payload = writer.Finish();
  REQUIRE(Check(payload, 2000).ok());
  for (size_t size = 0; size < payload.size(); ++size) {
    CHECK(absl::IsInvalidArgument(Check(payload.substr(0, size), 2000)));
  }
}

TEST_CASE("payload lengths are checked before anything is read", "[codec]") {
  CHECK(CheckPayloadBytes(CodecId::kInt8, 70'000, 70'008).ok());
  const absl::Status status = CheckPayloadBytes(CodecId::kInt8, 70'000, 70'000);
  CHECK(status.message() == "70000, expected 70008 for 70000 values of codec int8");
  CHECK(CheckPayloadBytes(CodecId::kSparseFp16, 70'000, 16).ok());
  CHECK(absl::IsInvalidArgument(CheckPayloadBytes(CodecId::kSparseFp16, 70'000, 15)));
  CHECK(absl::IsInvalidArgument(CheckPayloadBytes(CodecId::kSparseFp16, 8, 8 + 8 * 5 + 1)));
}

}  // namespace recon
