#include "server/membership/progress_watch.h"

#include "catch2/catch.hpp"

namespace recon {
namespace {

const absl::Time kStart = absl::FromUnixSeconds(1000);
const WorkerId kWorker(1);

}  // namespace

TEST_CASE("a worker stands still when its step takes far longer than its others", "[progress_watch]") {
  ProgressWatch watch(absl::Seconds(10));
  absl::Time now = kStart;
  CHECK_FALSE(watch.StandsStill(kWorker, now));  // Never heard of.
  for (uint64_t steps = 0; steps <= 20; ++steps, now += absl::Seconds(2)) {
    watch.Report(kWorker, steps, 2.0 * static_cast<double>(steps), now);
    CHECK_FALSE(watch.StandsStill(kWorker, now + absl::Seconds(9)));
  }
  now -= absl::Seconds(2);
  CHECK(watch.Patience(kWorker) == absl::Seconds(18));
  watch.Report(kWorker, 20, 40, now + absl::Seconds(18));  // Alive, but no further.
  CHECK_FALSE(watch.StandsStill(kWorker, now + absl::Seconds(18)));
  CHECK(watch.StandsStill(kWorker, now + absl::Seconds(19)));
  watch.Excuse(kWorker, now + absl::Seconds(19));
  CHECK_FALSE(watch.StandsStill(kWorker, now + absl::Seconds(30)));
  CHECK(watch.StandsStill(kWorker, now + absl::Seconds(38)));
  watch.Forget(kWorker);
  CHECK_FALSE(watch.StandsStill(kWorker, now + absl::Hours(1)));
}

TEST_CASE("who is little known, or uneven, is given longer", "[progress_watch]") {
  ProgressWatch watch(absl::Seconds(10));
  watch.Report(kWorker, 0, 0, kStart);
  watch.Report(kWorker, 3, 0.3, kStart + absl::Seconds(1));
  CHECK(watch.Patience(kWorker) == absl::Minutes(10));
  CHECK_FALSE(watch.StandsStill(kWorker, kStart + absl::Minutes(9)));
  CHECK(watch.StandsStill(kWorker, kStart + absl::Minutes(12)));
  uint64_t steps = 3;
  double seconds = 0.3;
  for (int i = 0; i < 16; ++i) {
    seconds += i % 2 == 0 ? 1 : 3;
    watch.Report(kWorker, ++steps, seconds, kStart + absl::Seconds(i));
  }
  // The median is 3, the distances from it are 0 and 2, of which the median is 2.
  CHECK(watch.Patience(kWorker) == absl::Seconds(10 + 4 * (3 + 6 * 2)));
  // Sums that go back are another process's.
  watch.Report(kWorker, 1, 0.1, kStart + absl::Seconds(20));
  CHECK(watch.Patience(kWorker) == absl::Minutes(10));
}

}  // namespace recon
