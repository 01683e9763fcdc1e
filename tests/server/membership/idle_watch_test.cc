#include "server/membership/idle_watch.h"

#include "catch2/catch.hpp"

namespace recon {
namespace {

absl::Time At(double seconds) { return absl::UnixEpoch() + absl::Seconds(seconds); }

}  // namespace

TEST_CASE("a job is idle from when it was first looked at, or from the last training", "[membership]") {
  IdleWatch watch;
  CHECK(watch.Idle(At(1000)) == absl::ZeroDuration());
  watch.Note(0, At(10));
  watch.Note(0, At(20));
  CHECK(watch.Idle(At(25)) == absl::Seconds(15));
  watch.Note(1, At(30));
  CHECK(watch.Idle(At(30)) == absl::ZeroDuration());
  watch.Note(1, At(90));
  CHECK(watch.Idle(At(100)) == absl::Seconds(70));
}

TEST_CASE("progress that goes back is progress, too: a rollback is no idleness", "[membership]") {
  IdleWatch watch;
  watch.Note(7, At(0));
  watch.Note(3, At(60));
  CHECK(watch.Idle(At(61)) == absl::Seconds(1));
}

}  // namespace recon
