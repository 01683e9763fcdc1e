#include "server/control/worker_states.h"

#include "catch2/catch.hpp"

namespace recon {
namespace {

constexpr WorkerId kOne(1), kTwo(2), kThree(3);
const absl::Time kNow = absl::UnixEpoch() + absl::Hours(1);

WorkerStateReport Has(uint64_t next, bool uncovered = false) {
  WorkerStateReport report;
  report.set_next(next + 1);
  report.set_uncovered(uncovered);
  return report;
}

WorkerStateReport WaitsFor(uint64_t step) {
  WorkerStateReport report;
  report.set_waits_for(step);
  return report;
}

}  // namespace

TEST_CASE("the server's state is one worker's where nobody who lives has a newer one", "[states]") {
  WorkerStates states;
  states.Report(kOne, WaitsFor(0));
  states.Report(kTwo, WaitsFor(0));
  CHECK_FALSE(states.Answer(kOne, 5, 0, /*may_take=*/false).take());
  const WorkerStateReply first = states.Answer(kOne, 5, 0, /*may_take=*/true);
  CHECK(first.take());
  CHECK(first.frontier() == 5);
  CHECK_FALSE(states.Answer(kTwo, 5, 0, true).take());
  // Who has not heard the answer gets it again; who dies with it makes room for another.
  states.Report(kOne, WaitsFor(0));
  CHECK(states.Answer(kOne, 5, 0, true).take());
  states.Forget(kOne);
  CHECK(states.Answer(kTwo, 5, 0, true).take());
}

TEST_CASE("whoever has come furthest is asked for the state when somebody waits for it", "[states]") {
  WorkerStates states;
  states.Report(kOne, Has(7));
  states.Report(kTwo, Has(9));
  states.OnUploaded(6, kNow);
  CHECK_FALSE(states.Ask(9, kNow + absl::Seconds(1)));
  states.Report(kThree, WaitsFor(8));
  CHECK(states.Ask(9, kNow + absl::Seconds(1)) == kTwo);
  CHECK_FALSE(states.Ask(9, kNow + absl::Seconds(2)));
  CHECK(states.Answer(kTwo, 9, 0, true).wanted());
  CHECK_FALSE(states.Answer(kOne, 9, 0, true).wanted());
  CHECK_FALSE(states.Answer(kThree, 9, 0, true).take());
  states.OnUploaded(9, kNow + absl::Seconds(3));
  CHECK(states.Answer(kThree, 9, 0, true).uploaded() == 9);
  CHECK_FALSE(states.Answer(kTwo, 9, 0, true).wanted());
}

TEST_CASE("of workers that have come equally far one is asked that has no work left", "[states]") {
  WorkerStates states;
  states.Report(kOne, Has(9));
  states.Report(kTwo, Has(9, /*uncovered=*/true));
  states.Report(kThree, Has(8, /*uncovered=*/true));
  CHECK(states.Ask(9, kNow) == kTwo);
}

TEST_CASE("another worker is asked when the one that was asked is gone, or does not bring its state",
          "[states]") {
  WorkerStates states;
  states.Report(kOne, Has(9));
  states.Report(kTwo, Has(8));
  states.Report(kThree, WaitsFor(5));
  REQUIRE(states.Ask(9, kNow) == kOne);
  CHECK(states.Ask(9, kNow + absl::Minutes(2)) == kTwo);
  states.Forget(kTwo);
  CHECK(states.Ask(9, kNow + absl::Minutes(2)) == kOne);
}

TEST_CASE("a state that nobody waits for is asked for from time to time, and only once steps have been done",
          "[states]") {
  WorkerStates states;
  states.Report(kOne, Has(4));
  CHECK_FALSE(states.Ask(0, kNow));
  REQUIRE(states.Ask(4, kNow) == kOne);
  states.OnUploaded(4, kNow + absl::Seconds(5));
  CHECK_FALSE(states.Ask(4, kNow + absl::Hours(1)));
  // The upload took 5 s: they take a twentieth of the time.
  CHECK_FALSE(states.Ask(6, kNow + absl::Seconds(60)));
  CHECK(states.Ask(6, kNow + absl::Seconds(106)) == kOne);
}

TEST_CASE("splits that wait to be completed hurry the state", "[states]") {
  WorkerStates states;
  states.Report(kOne, Has(4));
  REQUIRE(states.Ask(4, kNow) == kOne);
  states.OnUploaded(4, kNow);
  states.OnSaved(4);
  CHECK(states.Answer(kOne, 5, 0, true).saved() == 4);
  states.Report(kOne, Has(5, /*uncovered=*/true));
  CHECK(states.Ask(5, kNow + absl::Seconds(1)) == kOne);
}

}  // namespace recon
