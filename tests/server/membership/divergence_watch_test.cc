#include "server/membership/divergence_watch.h"

#include <cmath>
#include <limits>
#include <random>

#include "absl/strings/match.h"
#include "catch2/catch.hpp"

namespace recon {
namespace {

absl::Time At(int seconds) { return absl::FromUnixSeconds(1'700'000'000 + seconds); }

// Reports of two workers, one a second.
class Reports {
 public:
  explicit Reports(DivergenceWatch* watch) : watch_(watch) {}
  void Add(double loss) {
    ++count_;
    watch_->Report(WorkerId(static_cast<uint32_t>(count_ % 2)), static_cast<uint64_t>(count_), loss,
                   At(count_));
  }
  int count() const { return count_; }

 private:
  DivergenceWatch* watch_;
  int count_ = 0;
};

}  // namespace

TEST_CASE("a loss that falls, and single ones that are far off, are no divergence", "[divergence]") {
  DivergenceWatch watch;
  Reports reports(&watch);
  std::mt19937 random(7);
  std::normal_distribution<double> noise(0, 0.2);
  for (int i = 0; i < 2000; ++i) {
    reports.Add(i % 20 == 19 ? 1000 : 0.3 + 3 * std::exp(-i / 200.0) * std::exp(noise(random)));
    CHECK_FALSE(watch.Take());
  }
}

TEST_CASE("losses that stay far off are a divergence since the first of them, which is said once",
          "[divergence]") {
  DivergenceWatch watch;
  Reports reports(&watch);
  for (int i = 0; i < 100; ++i) reports.Add(0.5 + 0.01 * (i % 7));
  for (int i = 0; i < DivergenceWatch::kFarInARow; ++i) {
    CHECK_FALSE(watch.Take());
    reports.Add(20);
  }
  const auto found = watch.Take();
  REQUIRE(found);
  CHECK(found->since == At(101));
  CHECK(absl::StrContains(found->why, "the last is 20, usual are 0.53"));
  CHECK(watch.taken() == found->why);
  // Who goes on regardless is not told again of what is usual now.
  for (int i = 0; i < 300; ++i) reports.Add(20 + 0.01 * (i % 7));
  CHECK_FALSE(watch.Take());
  for (int i = 0; i < DivergenceWatch::kFarInARow; ++i) reports.Add(2000);
  CHECK(watch.Take());
}

TEST_CASE("too few losses say nothing, nor does one that is reported again", "[divergence]") {
  DivergenceWatch watch;
  Reports reports(&watch);
  for (size_t i = 0; i + 1 < DivergenceWatch::kReportsMin; ++i) reports.Add(0.5);
  for (int i = 0; i < 100; ++i) watch.Report(WorkerId(9), 77, 1e9, At(500 + i));
  CHECK_FALSE(watch.Take());
}

TEST_CASE("what is not finite is a divergence at once", "[divergence]") {
  DivergenceWatch watch;
  watch.Report(WorkerId(3), 1, std::numeric_limits<double>::infinity(), At(5));
  const auto found = watch.Take();
  REQUIRE(found);
  CHECK(found->why == "worker 3 reports a loss of inf");
  watch.Note("snapshot 4 has 2 values that are not finite", At(6));
  CHECK(watch.Take()->since == At(6));
}

TEST_CASE("a snapshot with values that are not finite is a divergence, once", "[divergence]") {
  DivergenceWatch watch;
  watch.ReportSnapshot(4, 0, At(5));
  CHECK_FALSE(watch.Take());
  CHECK(watch.taken().empty());
  watch.ReportSnapshot(5, 2, At(6));
  CHECK(watch.taken().empty());  // Nobody has heard of it yet.
  const auto found = watch.Take();
  REQUIRE(found);
  CHECK(found->why == "snapshot 5 has 2 values that are not finite");
  CHECK(found->since == At(6));
  CHECK(watch.taken() == found->why);
  watch.Note("the loss is inf", At(7));
  REQUIRE(watch.Take());
  watch.ReportSnapshot(5, 2, At(8));
  CHECK_FALSE(watch.Take());
  watch.ReportSnapshot(6, 2, At(9));
  CHECK(watch.Take());
}

}  // namespace recon
