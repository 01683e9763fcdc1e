#include "server/membership/stall_watch.h"

#include "catch2/catch.hpp"

namespace recon {
namespace {

absl::Time At(double seconds) { return absl::UnixEpoch() + absl::Seconds(seconds); }

}  // namespace

TEST_CASE("a job that stands still is said so after ten seconds, and then ever less often", "[membership]") {
  StallWatch watch;
  std::vector<int> said;
  for (int second = 0; second <= 100; ++second) {
    if (watch.Note(7, At(second))) said.push_back(second);
  }
  CHECK(said == std::vector<int>{10, 30, 70});
  CHECK(watch.Standing(At(100)) == absl::Seconds(100));
}

TEST_CASE("a job that moves does not stand still", "[membership]") {
  StallWatch watch;
  for (int second = 0; second <= 100; ++second) CHECK_FALSE(watch.Note(second / 9, At(second)));
  CHECK(watch.Standing(At(100)) == absl::ZeroDuration());
}

TEST_CASE("what is not expected to move is not waited for", "[membership]") {
  StallWatch watch;
  watch.Note(7, At(0));
  watch.Reset();
  CHECK(watch.Standing(At(60)) == absl::ZeroDuration());
  CHECK_FALSE(watch.Note(7, At(60)));
  CHECK(watch.Note(7, At(70)));
}

}  // namespace recon
