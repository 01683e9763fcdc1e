#include "common/trace/clock_alignment.h"

#include <cmath>
#include <random>

#include "catch2/catch.hpp"

namespace recon::trace {
namespace {

constexpr int64_t kMs = 1'000'000;
constexpr int64_t kSecond = 1000 * kMs;

// Another clock: ahead by so much when ours is 0, and faster by `drift`.
struct OtherClock {
  int64_t ahead = 0;
  double drift = 0;
  int64_t At(int64_t ours) const {
    return ours + ahead + static_cast<int64_t>(drift * static_cast<double>(ours));
  }
};

ClockReading Read(const OtherClock& other, int64_t at, int64_t there, int64_t busy, int64_t back) {
  return {at, other.At(at + there), other.At(at + there + busy), at + there + busy + back};
}

}  // namespace

TEST_CASE("a clock's offset is the mean of both ways, and its error half of the way", "[trace]") {
  const OtherClock other{-5 * kSecond};
  const auto even = AlignClocks({Read(other, 10 * kSecond, 2 * kMs, 7 * kMs, 2 * kMs)});
  REQUIRE(even);
  CHECK((*even)(11 * kSecond) == 6 * kSecond);
  CHECK(even->error_ns == 2 * kMs);
  // All of the way in one direction: wrong by the error, and no more.
  const auto uneven = AlignClocks({Read(other, 10 * kSecond, 4 * kMs, 7 * kMs, 0)});
  REQUIRE(uneven);
  CHECK((*uneven)(11 * kSecond) == 6 * kSecond + 2 * kMs);
  CHECK(uneven->error_ns == 2 * kMs);
}

TEST_CASE("the reading with the shortest way wins", "[trace]") {
  const OtherClock other{3 * kSecond};
  const auto map =
      AlignClocks({Read(other, kSecond, 50 * kMs, 0, 0), Read(other, kSecond + 100 * kMs, kMs, 0, kMs),
                   Read(other, kSecond + 200 * kMs, 0, 0, 80 * kMs)});
  REQUIRE(map);
  CHECK(std::abs((*map)(kSecond)-4 * kSecond) <= kMs / 10);
  CHECK(map->error_ns < 2 * kMs);
}

TEST_CASE("a clock that runs faster is followed from begin to end", "[trace]") {
  const OtherClock other{7 * kSecond, 1e-4};  // A millisecond in ten seconds.
  std::vector<ClockReading> readings;
  for (int i = 0; i <= 10; ++i) readings.push_back(Read(other, i * kSecond, kMs / 10, kMs, kMs / 10));
  const auto map = AlignClocks(readings);
  REQUIRE(map);
  for (int i = 0; i <= 10; ++i) {
    CHECK(std::abs((*map)(i * kSecond) - other.At(i * kSecond)) <= map->error_ns);
  }
  CHECK(map->error_ns < kMs / 2);
}

TEST_CASE("whatever the ways take, a time is wrong by no more than the error says", "[trace]") {
  const unsigned seed = Catch::rngSeed();
  INFO("seed " << seed);
  std::mt19937_64 random(seed);
  std::exponential_distribution<double> way(1.0 / (2 * kMs));
  std::uniform_real_distribution<double> drift(-1e-4, 1e-4);
  for (int round = 0; round < 200; ++round) {
    const OtherClock other{static_cast<int64_t>(random() % (1000 * kSecond)), drift(random)};
    std::vector<ClockReading> readings;
    for (int i = 0; i < 20; ++i) {
      readings.push_back(Read(other, i * kSecond / 2, static_cast<int64_t>(way(random)), kMs,
                              static_cast<int64_t>(way(random))));
    }
    const auto map = AlignClocks(readings);
    REQUIRE(map);
    for (const ClockReading& reading : readings) {
      // Readings themselves are exact to a nanosecond or two.
      REQUIRE(std::abs((*map)(reading.asked) - other.At(reading.asked)) <= map->error_ns + 10);
    }
  }
}

TEST_CASE("readings that make no sense are none", "[trace]") {
  CHECK_FALSE(AlignClocks({}));
  CHECK_FALSE(AlignClocks({{10, 5, 5, 9}}));         // Answered before it was asked.
  CHECK_FALSE(AlignClocks({{10, 5, 4, 20}}));        // Sent before it was received.
  CHECK_FALSE(AlignClocks({{10, 0, kSecond, 20}}));  // The other one took longer than the whole way.
}

}  // namespace recon::trace
