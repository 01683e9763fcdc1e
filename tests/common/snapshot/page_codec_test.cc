#include "common/snapshot/page_codec.h"

#include <cmath>
#include <cstring>
#include <limits>
#include <random>
#include <vector>

#include "absl/strings/match.h"
#include "catch2/catch.hpp"
#include "common/base/hash.h"
#include "common/tensor/page.h"

namespace recon {
namespace {

const PageId kId{4, 1, 2, 9};

// Values as trained weights have them: few exponents, all mantissas.
std::vector<float> Weights(size_t count) {
  std::mt19937_64 random(7);
  std::normal_distribution<float> normal(0, 0.05f);
  std::vector<float> values(count);
  for (float& value : values) value = normal(random);
  return values;
}

// One in a hundred is not zero.
std::vector<float> Sparse(size_t count) {
  std::vector<float> values(count, 0.0f);
  for (size_t i = 0; i < count; i += 100) values[i] = 1.0f / static_cast<float>(i + 1);
  return values;
}

std::string HashOf(const std::vector<float>& values) {
  return Hash128(values.data(), values.size() * sizeof(float));
}

std::string Encoded(const std::vector<float>& values, int level = 1) {
  std::string bytes;
  PageCodec().Encode(kId, values, level, &bytes);
  return bytes;
}

absl::Status Decoded(absl::string_view bytes, const std::vector<float>& expected, std::vector<float>* out) {
  out->assign(expected.size(), -1.0f);
  return PageCodec().Decode(bytes, kId, HashOf(expected), absl::MakeSpan(*out));
}

bool Equal(const std::vector<float>& a, const std::vector<float>& b) {
  return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0;
}

}  // namespace

TEST_CASE("pages of any size and content come back bit for bit", "[page_codec]") {
  std::vector<std::vector<float>> pages;
  for (const size_t count :
       {size_t{1}, size_t{2}, size_t{5}, size_t{1000}, size_t{1025}, kPageParams - 1, kPageParams}) {
    pages.push_back(Weights(count));
    pages.push_back(Sparse(count));
    pages.emplace_back(count, 0.0f);
  }
  std::vector<float> bits(kPageParams);  // NaNs with payloads, infinities, subnormals: bits are bits.
  std::mt19937 random(3);
  for (float& value : bits) {
    const auto word = static_cast<uint32_t>(random());
    std::memcpy(&value, &word, sizeof(value));
  }
  pages.push_back(bits);
  for (const int level : {1, 3}) {
    for (const std::vector<float>& page : pages) {
      CAPTURE(level, page.size());
      std::vector<float> read;
      REQUIRE(Decoded(Encoded(page, level), page, &read).ok());
      CHECK(Equal(read, page));
    }
  }
}

TEST_CASE("weights shrink by their exponents, zeros to almost nothing, noise not at all", "[page_codec]") {
  const std::vector<float> weights = Weights(kPageParams);
  PageCodec codec;
  std::string bytes;
  codec.Encode(kId, weights, 1, &bytes);
  CHECK(static_cast<double>(kPageBytes) / static_cast<double>(bytes.size()) > 1.18);
  CHECK(codec.stats().stored_bytes[0] == codec.stats().raw_bytes[0]);
  CHECK(codec.stats().stored_bytes[3] < codec.stats().raw_bytes[3] / 2);
  CHECK(Encoded(std::vector<float>(kPageParams, 0.0f)).size() < 200);
  CHECK(Encoded(Sparse(kPageParams)).size() < kPageBytes / 20);
  std::vector<float> noise(kPageParams);
  std::mt19937 random(3);
  for (float& value : noise) {
    const auto word = static_cast<uint32_t>(random());
    std::memcpy(&value, &word, sizeof(value));
  }
  CHECK(Encoded(noise).size() == kPageBytes + 48);
}

TEST_CASE("a changed byte or another length of a page never gets through", "[page_codec]") {
  const std::vector<float> page = Weights(700);
  const std::string bytes = Encoded(page);
  std::vector<float> read;
  for (size_t at = 0; at < bytes.size(); ++at) {
    std::string altered = bytes;
    altered[at] = static_cast<char>(altered[at] ^ 0x10);
    CAPTURE(at);
    REQUIRE(absl::IsDataLoss(Decoded(altered, page, &read)));
    REQUIRE(absl::IsDataLoss(Decoded(absl::string_view(bytes).substr(0, at), page, &read)));
  }
  CHECK(absl::IsDataLoss(Decoded(bytes + "x", page, &read)));
}

TEST_CASE("a page in the wrong place is refused with both names", "[page_codec]") {
  const std::vector<float> page = Weights(100);
  const std::string bytes = Encoded(page);
  std::vector<float> read(100);
  PageCodec codec;
  for (const PageId& other :
       {PageId{5, 1, 2, 9}, PageId{4, 0, 2, 9}, PageId{4, 1, 3, 9}, PageId{4, 1, 2, 8}}) {
    const absl::Status status = codec.Decode(bytes, other, HashOf(page), absl::MakeSpan(read));
    CHECK(absl::IsDataLoss(status));
    CHECK(absl::StrContains(status.message(), "found shard 4 role 1 page 2 of generation 9"));
  }
  const absl::Status status = codec.Decode(bytes, kId, HashOf(Weights(99)), absl::MakeSpan(read));
  CHECK(absl::IsDataLoss(status));
  CHECK(absl::StrContains(status.message(), "hash "));
}

TEST_CASE("planes that lie about their lengths are refused, whatever their checksum", "[page_codec]") {
  const std::vector<float> page = Weights(700);
  const std::string payload = Encoded(page).substr(48);
  std::vector<float> read(700);
  PageCodec codec;
  REQUIRE(codec.DecodePlanes(payload, absl::MakeSpan(read)).ok());
  CHECK(Equal(read, page));
  for (size_t at = 0; at < 32; ++at) {
    if (at % 8 > 4) continue;  // Zeros that mean nothing.
    std::string altered = payload;
    altered[at] = static_cast<char>(altered[at] ^ 0x42);
    CAPTURE(at);
    CHECK(absl::IsDataLoss(codec.DecodePlanes(altered, absl::MakeSpan(read))));
  }
}

}  // namespace recon
