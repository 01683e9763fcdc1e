#include "server/store/push_ledger.h"

#include <algorithm>
#include <random>
#include <set>

#include "catch2/catch.hpp"

namespace recon {

TEST_CASE("a push id is taken once, in whatever order a window of steps comes", "[ledger]") {
  for (uint32_t seed = 0; seed < 100; ++seed) {
    INFO("seed " << seed);
    std::mt19937 random(seed);
    PushLedger ledger;
    std::set<uint64_t> taken;
    uint64_t base = 0;
    for (int i = 0; i < 500; ++i) {
      if (random() % 4 == 0) ++base;
      const uint64_t step = base + random() % 32;
      REQUIRE(ledger.Taken(WorkerId(1), Incarnation(5), step) == (taken.count(step) != 0));
      REQUIRE(ledger.Take(WorkerId(1), Incarnation(5), step) == taken.insert(step).second);
    }
  }
}

TEST_CASE("workers and incarnations have steps of their own", "[ledger]") {
  PushLedger ledger;
  CHECK(ledger.Take(WorkerId(1), Incarnation(5), 100));
  CHECK(ledger.Take(WorkerId(2), Incarnation(5), 100));
  CHECK(ledger.Take(WorkerId(1), Incarnation(6), 3));
  CHECK_FALSE(ledger.Take(WorkerId(1), Incarnation(6), 3));
  CHECK(ledger.Take(WorkerId(1), Incarnation(6), 4));
}

TEST_CASE("a step too far back counts as taken", "[ledger]") {
  PushLedger ledger;
  CHECK(ledger.Take(WorkerId(1), Incarnation(5), 1000));
  CHECK_FALSE(ledger.Take(WorkerId(1), Incarnation(5), 936));
  CHECK(ledger.Take(WorkerId(1), Incarnation(5), 937));
  CHECK(ledger.Take(WorkerId(1), Incarnation(5), 5000));
  CHECK_FALSE(ledger.Take(WorkerId(1), Incarnation(5), 1000));
}

TEST_CASE("a restored ledger knows what the first one knew", "[ledger]") {
  PushLedger ledger;
  for (const uint64_t step : {3, 4, 7}) ledger.Take(WorkerId(1), Incarnation(5), step);
  PushLedger restored;
  restored.Restore(ledger.Entries());
  for (const uint64_t step : {3, 4, 7}) CHECK(restored.Taken(WorkerId(1), Incarnation(5), step));
  for (const uint64_t step : {5, 6, 8}) CHECK_FALSE(restored.Taken(WorkerId(1), Incarnation(5), step));
}

TEST_CASE("a step further back than the window is forgotten: neither known to be taken nor to be new",
          "[ledger]") {
  PushLedger ledger;
  const WorkerId worker(1);
  const Incarnation incarnation(5);
  CHECK(ledger.Take(worker, incarnation, 199));
  CHECK_FALSE(ledger.Forgotten(worker, incarnation, 199 - 63));
  CHECK(ledger.Take(worker, incarnation, 1000));
  CHECK(ledger.Forgotten(worker, incarnation, 198));
  CHECK(ledger.Forgotten(worker, incarnation, 1000 - 64));
  CHECK_FALSE(ledger.Forgotten(worker, incarnation, 1000 - 63));
  CHECK_FALSE(ledger.Forgotten(worker, Incarnation(6), 198));
  CHECK_FALSE(ledger.Forgotten(WorkerId(2), incarnation, 198));
}

}  // namespace recon
