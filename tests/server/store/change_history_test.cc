#include "server/store/change_history.h"

#include <numeric>

#include "catch2/catch.hpp"
#include "common/tensor/page.h"

namespace recon {

using Extent = ChangeHistory::Extent;

TEST_CASE("a history tells what changed after a version, page by page", "[history]") {
  ChangeHistory history(2 * kPageParams);
  std::vector<uint16_t> changed;
  CHECK(history.Since(0, 0, &changed) == Extent::kNothing);
  history.NotePage(1, 0, std::vector<uint16_t>{5, 9});
  history.NotePage(2, 1, std::vector<uint16_t>{7});
  history.NotePage(3, 0, std::vector<uint16_t>{1, 9, 65'535});
  REQUIRE(history.Since(0, 0, &changed) == Extent::kSome);
  CHECK(changed == std::vector<uint16_t>{1, 5, 9, 65'535});
  REQUIRE(history.Since(1, 0, &changed) == Extent::kSome);
  CHECK(changed == std::vector<uint16_t>{1, 9, 65'535});
  CHECK(history.Since(3, 0, &changed) == Extent::kNothing);
  CHECK(history.Since(2, 1, &changed) == Extent::kNothing);
}

TEST_CASE("what is not known one by one counts as everything", "[history]") {
  ChangeHistory history(kPageParams);
  std::vector<uint16_t> changed;
  history.NoteAll(4);
  CHECK(history.Since(3, 0, &changed) == Extent::kAll);
  CHECK(history.Since(4, 0, &changed) == Extent::kNothing);
  // A page remembers less than a quarter of its values: the oldest change makes room.
  std::vector<uint16_t> many(kPageParams / 8 - 100);
  std::iota(many.begin(), many.end(), uint16_t{0});
  for (uint64_t version = 5; version < 8; ++version) history.NotePage(version, 0, many);
  CHECK(history.Since(4, 0, &changed) == Extent::kAll);
  CHECK(history.Since(5, 0, &changed) == Extent::kSome);
  CHECK(changed == many);
}

}  // namespace recon
