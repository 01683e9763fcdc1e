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
  CHECK_FALSE(states.Answer(kOne, 5, 0, /*may_take=*/false, false).take());
  const WorkerStateReply first = states.Answer(kOne, 5, 0, /*may_take=*/true, false);
  CHECK(first.take());
  CHECK(first.frontier() == 5);
  CHECK_FALSE(states.Answer(kTwo, 5, 0, true, false).take());
  // Who has not heard the answer gets it again; who dies with it makes room for another.
  states.Report(kOne, WaitsFor(0));
  CHECK(states.Answer(kOne, 5, 0, true, false).take());
  states.Forget(kOne);
  CHECK(states.Answer(kTwo, 5, 0, true, false).take());
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
  CHECK(states.Answer(kTwo, 9, 0, true, false).wanted());
  CHECK_FALSE(states.Answer(kOne, 9, 0, true, false).wanted());
  CHECK_FALSE(states.Answer(kThree, 9, 0, true, false).take());
  states.OnUploaded(9, kNow + absl::Seconds(3));
  CHECK(states.Answer(kThree, 9, 0, true, false).uploaded() == 9);
  CHECK_FALSE(states.Answer(kTwo, 9, 0, true, false).wanted());
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
  CHECK(states.Answer(kOne, 5, 0, true, false).saved() == 4);
  states.Report(kOne, Has(5, /*uncovered=*/true));
  CHECK(states.Ask(5, kNow + absl::Seconds(1)) == kOne);
}

TEST_CASE("loops that read ahead end before the step that all batches reach to", "[states]") {
  const auto reads_ahead = [](uint64_t next, uint64_t at, uint64_t through) {
    WorkerStateReport report = Has(next);
    report.set_at(at);
    report.set_through(through);
    report.set_asks_end(true);
    return report;
  };
  WorkerStates states;
  states.Report(kOne, reads_ahead(3, 5, 5));
  states.Report(kTwo, reads_ahead(3, 4, 4));
  CHECK_FALSE(states.Answer(kOne, 3, 0, true, /*all_given=*/false).has_others_reach());
  states.NoteGranted(kTwo, 3);
  // A report from before the lease takes nothing of it back.
  states.Report(kTwo, reads_ahead(3, 4, 4));
  states.NoteNothingLeft(kOne, 0);
  const WorkerStateReply more = states.Answer(kOne, 3, 0, true, /*all_given=*/true);
  CHECK(more.others_reach() == 7);
  CHECK_FALSE(more.has_ended_pass());
  states.Report(kOne, reads_ahead(3, 7, 5));
  states.NoteNothingLeft(kOne, 0);
  const WorkerStateReply end = states.Answer(kTwo, 3, 0, true, true);
  CHECK(end.ended_pass() == 0);
  CHECK(end.ends_at() == 7);
  // What comes later changes nothing of it; and the next pass has an end of its own.
  states.Report(kOne, reads_ahead(9, 9, 9));
  states.NoteNothingLeft(kOne, 0);
  CHECK(states.Answer(kTwo, 9, 0, true, true).ends_at() == 7);
  states.NoteNothingLeft(kOne, 1);
  CHECK(states.Answer(kTwo, 9, 1, true, true).ends_at() == 9);
}

TEST_CASE("a worker that is gone holds up no end of a pass", "[states]") {
  WorkerStates states;
  WorkerStateReport report = Has(2);
  report.set_at(4);
  report.set_through(4);
  report.set_asks_end(true);
  states.Report(kOne, report);
  states.Report(kTwo, Has(2));
  states.NoteGranted(kTwo, 9);
  states.NoteNothingLeft(kOne, 0);
  CHECK_FALSE(states.Answer(kOne, 2, 0, true, true).has_ended_pass());
  states.Forget(kTwo);
  states.NoteNothingLeft(kOne, 0);
  CHECK(states.Answer(kOne, 2, 0, true, true).ends_at() == 4);
}

}  // namespace recon
