#include "common/base/stall_watch.h"

#include <vector>

#include "catch2/catch.hpp"

namespace recon {
namespace {

absl::Time At(double seconds) { return absl::UnixEpoch() + absl::Seconds(seconds); }

}  // namespace

TEST_CASE("what stands still is said after ten seconds, then ever less often, and once a minute at least",
          "[stall_watch]") {
  StallWatch watch;
  std::vector<int> said;
  for (int second = 0; second <= 260; ++second) {
    if (watch.Note(7, At(second))) said.push_back(second);
  }
  CHECK(said == std::vector<int>{10, 30, 70, 130, 190, 250});
  CHECK(watch.Standing(At(260)) == absl::Seconds(260));
}

TEST_CASE("what others have waited for already is said at once, and then as the rest", "[stall_watch]") {
  StallWatch watch(absl::ZeroDuration());
  std::vector<int> said;
  for (int second = 0; second <= 140; ++second) {
    if (watch.Note(7, At(second))) said.push_back(second);
  }
  CHECK(said == std::vector<int>{0, 10, 30, 70, 130});
}

TEST_CASE("what moves does not stand still", "[stall_watch]") {
  StallWatch watch;
  for (int second = 0; second <= 100; ++second) CHECK_FALSE(watch.Note(second / 9, At(second)));
  CHECK(watch.Standing(At(100)) == absl::ZeroDuration());
  CHECK(watch.Waited(At(100)) == absl::Seconds(1));
}

TEST_CASE("what is not expected to move is not waited for", "[stall_watch]") {
  StallWatch watch;
  watch.Note(7, At(0));
  watch.Reset();
  CHECK(watch.Standing(At(60)) == absl::ZeroDuration());
  CHECK(watch.Waited(At(60)) == absl::ZeroDuration());
  CHECK_FALSE(watch.Note(7, At(60)));
  CHECK(watch.Note(7, At(70)));
}

}  // namespace recon
