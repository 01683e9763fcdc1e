#include "server/membership/progress_watch.h"

#include "catch2/catch.hpp"

namespace recon {
namespace {

const absl::Time kStart = absl::FromUnixSeconds(1000);
const WorkerId kWorker(1);

}  // namespace

TEST_CASE("a worker stands still when a batch takes far longer than its others", "[progress_watch]") {
  ProgressWatch watch(absl::Seconds(10));
  absl::Time now = kStart;
  CHECK_FALSE(watch.StandsStill(kWorker, false, now));  // Never heard of.
  for (uint64_t batches = 0; batches <= 20; batches += 2, now += absl::Seconds(4)) {
    watch.Report(kWorker, batches, now);
    CHECK_FALSE(watch.StandsStill(kWorker, false, now + absl::Seconds(9)));
  }
  now -= absl::Seconds(4);
  CHECK(watch.Patience(kWorker, false) == absl::Seconds(18));
  watch.Report(kWorker, 20, now + absl::Seconds(18));  // Alive, but no further.
  CHECK_FALSE(watch.StandsStill(kWorker, false, now + absl::Seconds(18)));
  CHECK(watch.StandsStill(kWorker, false, now + absl::Seconds(19)));
  watch.Excuse(kWorker, now + absl::Seconds(19));
  CHECK_FALSE(watch.StandsStill(kWorker, false, now + absl::Seconds(30)));
  CHECK(watch.StandsStill(kWorker, false, now + absl::Seconds(38)));
  watch.Forget(kWorker);
  CHECK_FALSE(watch.StandsStill(kWorker, false, now + absl::Hours(1)));
}

TEST_CASE("who is little known, or uneven, is given longer", "[progress_watch]") {
  ProgressWatch watch(absl::Seconds(10));
  absl::Time now = kStart;
  watch.Report(kWorker, 0, now);
  watch.Report(kWorker, 3, now += absl::Seconds(1));
  CHECK(watch.Patience(kWorker, false) == absl::Minutes(10));
  CHECK_FALSE(watch.StandsStill(kWorker, false, now + absl::Minutes(9)));
  CHECK(watch.StandsStill(kWorker, false, now + absl::Minutes(11)));
  for (uint64_t batch = 4; batch < 20; ++batch) {
    watch.Report(kWorker, batch, now += absl::Seconds(batch % 2 == 0 ? 1 : 3));
  }
  // The median is 3, the distances from it are 0 and 2, of which the median is 2.
  CHECK(watch.Patience(kWorker, false) == absl::Seconds(10 + 4 * (3 + 6 * 2)));
  // A count that goes back is another process's.
  watch.Report(kWorker, 1, now);
  CHECK(watch.Patience(kWorker, false) == absl::Minutes(10));
}

TEST_CASE("who computes for long, and then waits, is given as long as that takes", "[progress_watch]") {
  ProgressWatch watch(absl::Seconds(10));
  absl::Time now = kStart;
  for (uint64_t batches = 0; batches < 6; ++batches) {
    // 30 s of computing, a heartbeat that has the batch, 5 s of waiting, and a lease.
    for (int second = 0; second < 30; ++second) {
      watch.Report(kWorker, batches, now += absl::Seconds(1));
      CHECK_FALSE(watch.StandsStill(kWorker, false, now));
    }
    for (int second = 0; second < 5; ++second) {
      watch.Report(kWorker, batches + 1, now += absl::Seconds(1));
      watch.Excuse(kWorker, now);
    }
  }
  CHECK(watch.Patience(kWorker, false) >= absl::Seconds(4 * 30));
}

TEST_CASE("a newcomer that others wait for has twice the time of any other", "[progress_watch]") {
  ProgressWatch watch(absl::Seconds(10));
  const WorkerId newcomer(2);
  absl::Time now = kStart;
  CHECK(watch.Patience(newcomer, true) == absl::Minutes(10));  // Nobody else is known either.
  for (uint64_t batches = 0; batches < 10; ++batches, now += absl::Seconds(2))
    watch.Report(kWorker, batches, now);
  watch.Report(newcomer, 1, now);
  CHECK(watch.Patience(kWorker, true) == absl::Seconds(18));
  CHECK(watch.Patience(newcomer, true) == absl::Seconds(36));
  CHECK(watch.Patience(newcomer, false) == absl::Minutes(10));
  CHECK_FALSE(watch.StandsStill(newcomer, true, now + absl::Seconds(36)));
  CHECK(watch.StandsStill(newcomer, true, now + absl::Seconds(37)));
}

}  // namespace recon
