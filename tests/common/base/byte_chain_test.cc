#include "common/base/byte_chain.h"

#include "catch2/catch.hpp"

namespace recon {
namespace {

// "abcdefghij" cut into pieces of the given sizes.
ByteChain Pieces(const std::vector<size_t>& sizes) {
  ByteChain chain;
  char next = 'a';
  for (const size_t size : sizes) {
    std::string piece;
    for (size_t i = 0; i < size; ++i) piece += next++;
    chain.Append(ByteChain::FromString(piece));
  }
  return chain;
}

}  // namespace

TEST_CASE("a chain reads the same however it is cut", "[byte_chain]") {
  for (const auto& sizes :
       std::vector<std::vector<size_t>>{{10}, {1, 9}, {3, 3, 4}, {1, 1, 1, 1, 1, 1, 1, 1, 1, 1}}) {
    const ByteChain chain = Pieces(sizes);
    REQUIRE(chain.ToString() == "abcdefghij");
    for (size_t step = 1; step <= 10; ++step) {
      ByteReader reader(chain);
      std::string read;
      uint8_t scratch[10];
      while (reader.remaining() > 0) {
        const size_t size = std::min(step, reader.remaining());
        read.append(reinterpret_cast<const char*>(reader.Read(size, scratch)), size);
      }
      REQUIRE(read == "abcdefghij");
    }
  }
}

TEST_CASE("runs of values have every byte once, and only values in two pieces are put together",
          "[byte_chain]") {
  for (const auto& sizes :
       std::vector<std::vector<size_t>>{{10}, {1, 9}, {3, 3, 4}, {2, 2, 2, 2, 2}, {5, 5}}) {
    const ByteChain chain = Pieces(sizes);
    for (const size_t max : {size_t{1}, size_t{2}, size_t{5}}) {
      ByteReader reader(chain);
      std::string read;
      uint8_t scratch[2];
      while (reader.remaining() > 0) {
        size_t items = 0;
        const uint8_t* run = reader.ReadRun(2, max, scratch, &items);
        REQUIRE(items >= 1);
        REQUIRE(items <= max);
        REQUIRE((run != scratch || items == 1));
        read.append(reinterpret_cast<const char*>(run), 2 * items);
      }
      REQUIRE(read == "abcdefghij");
    }
  }
}

TEST_CASE("pieces that lie side by side become one, if one owner has them", "[byte_chain]") {
  const auto owner = std::make_shared<const std::string>("abcdef");
  const char* at = owner->data();
  ByteChain chain;
  chain.Append(at, 2, owner);
  chain.Append(at + 2, 1, std::shared_ptr<const void>(owner, at + 2));  // Another pointer, the same owner.
  CHECK(chain.pieces().size() == 1);
  chain.Append(at + 4, 1, owner);  // A gap.
  CHECK(chain.pieces().size() == 2);
  const std::shared_ptr<const void> other(at, [](const void*) {});
  chain.Append(at + 5, 1, other);
  CHECK(chain.pieces().size() == 3);
  CHECK(chain.ToString() == "abcef");
  CHECK(chain.size() == 5);
  // Put together again from ranges.
  ByteChain whole = chain.Range(0, 2);
  whole.Append(chain.Range(2, 2));
  whole.Append(chain.Range(4, 1));
  CHECK(whole.ToString() == "abcef");
  CHECK(whole.pieces().size() == 3);
  CHECK(chain.Range(5, 0).pieces().empty());
  const ByteChain moved = std::move(whole);
  CHECK(moved.ToString() == "abcef");
  CHECK(whole.pieces().empty());  // NOLINT(bugprone-use-after-move)
  CHECK(whole.size() == 0);       // NOLINT(bugprone-use-after-move)
}

TEST_CASE("a range of a chain has its bytes and keeps its owners alive", "[byte_chain]") {
  ByteChain range;
  for (size_t begin = 0; begin <= 10; ++begin) {
    for (size_t size = 0; begin + size <= 10; ++size) {
      range = Pieces({2, 5, 3}).Range(begin, size);  // The chain itself is gone afterwards.
      REQUIRE(range.ToString() == std::string("abcdefghij").substr(begin, size));
      REQUIRE(range.size() == size);
    }
  }
}

TEST_CASE("a writer puts every item where a reader finds it, also one that lies in several pieces",
          "[byte_chain]") {
  constexpr size_t kItems = 10, kWidth = 3;
  for (const auto& sizes : std::vector<std::vector<size_t>>{
           {30}, {1, 29}, {3, 27}, {4, 26}, {14, 1, 1, 14}, {10, 10, 10}, std::vector<size_t>(30, 1)}) {
    ByteChain chain;
    for (const size_t size : sizes) {
      const std::shared_ptr<uint8_t[]> piece(new uint8_t[size]());
      chain.Append(piece.get(), size, piece);
    }
    ByteWriter writer(chain);
    std::string written;
    for (const size_t items : {size_t{1}, size_t{0}, size_t{7}, size_t{2}}) {
      size_t next = 0;
      writer.Write(kWidth, items, [&](uint8_t* to, size_t first, size_t count) {
        REQUIRE(first == next);
        REQUIRE(count >= 1);
        next += count;
        for (size_t i = 0; i < count * kWidth; ++i) {
          to[i] = static_cast<uint8_t>('a' + written.size());
          written += static_cast<char>(to[i]);
        }
      });
      REQUIRE(next == items);
    }
    REQUIRE(written.size() == kItems * kWidth);
    CHECK(chain.ToString() == written);
  }
}

}  // namespace recon
