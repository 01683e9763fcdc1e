#include "common/base/pool_allocator.h"

#include <cstdint>
#include <cstring>
#include <thread>
#include <vector>

#include "absl/functional/any_invocable.h"
#include "catch2/catch.hpp"

namespace recon {

TEST_CASE("a block that was given back is what the next one gets who asks for as much", "[pool_allocator]") {
  const size_t bytes = GENERATE(1, 31, 32, 33, 1000, kPooledBytesMax);
  void* const block = TakePooled(bytes);
  std::memset(block, 1, bytes);
  void* const other = TakePooled(bytes);
  CHECK(other != block);
  std::thread([=] { GivePooled(block, bytes); }).join();
  void* const again = TakePooled(bytes);
  CHECK(again == block);
  std::memset(again, 2, bytes);
  GivePooled(again, bytes);
  GivePooled(other, bytes);
}

TEST_CASE("blocks of different sizes do not overlap", "[pool_allocator]") {
  std::vector<std::pair<uint8_t*, size_t>> blocks;
  for (int round = 0; round < 2; ++round) {
    for (size_t bytes = 1; bytes <= 2 * kPooledBytesMax; bytes = bytes * 3 / 2 + 1) {
      blocks.emplace_back(static_cast<uint8_t*>(TakePooled(bytes)), bytes);
      std::memset(blocks.back().first, static_cast<int>(blocks.size()), bytes);
    }
    for (size_t i = 0; i < blocks.size(); ++i) {
      const auto [block, bytes] = blocks[i];
      CHECK(block[0] == i + 1);
      CHECK(block[bytes - 1] == i + 1);
      GivePooled(block, bytes);
    }
    blocks.clear();
  }
}

TEST_CASE("a pooled function is called with what it is given, and ends with its last copy",
          "[pool_allocator]") {
  const auto held = std::make_shared<int>(0);
  absl::AnyInvocable<int(int)> call = Pooled([held](int more) { return *held += more; });
  CHECK(held.use_count() == 2);
  CHECK(call(2) == 2);
  CHECK(call(3) == 5);
  auto moved = std::move(call);
  CHECK(moved(1) == 6);
  moved = nullptr;
  CHECK(held.use_count() == 1);
}

}  // namespace recon
