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

TEST_CASE("who was not heard of while the servers' state was another's has no state any more", "[states]") {
  WorkerStates states;
  states.BeginEpoch(1);
  states.Report(kOne, WaitsFor(0));
  const uint64_t line = states.Answer(kOne, 5, 0, true, false).line();
  CHECK(states.Answer(kOne, 5, 0, true, false).line() == line);  // It has not heard of it.
  WorkerStateReport ones = Has(5);
  ones.set_line(line);
  REQUIRE(states.Check(ones).ok());
  states.Report(kOne, ones);
  SECTION("it was evicted meanwhile") {
    states.Forget(kOne);
    states.Report(kTwo, WaitsFor(5));
    const WorkerStateReply taken = states.Answer(kTwo, 6, 0, true, false);
    REQUIRE(taken.take());
    CHECK(taken.line() > line);
    CHECK(absl::IsFailedPrecondition(states.Check(ones)));
    CHECK(states.Check(WaitsFor(6)).ok());
  }
  SECTION("it has lost the state itself: whatever it takes is another line") {
    states.Report(kOne, WaitsFor(9));
    const WorkerStateReply taken = states.Answer(kOne, 9, 0, true, false);
    REQUIRE(taken.take());
    CHECK(taken.line() > line);
  }
  SECTION("the head was killed: workers bring the line") {
    WorkerStates after;
    after.BeginEpoch(2);
    REQUIRE(after.Check(ones).ok());
    after.Report(kOne, ones);
    CHECK(after.Answer(kTwo, 6, 0, true, false).line() == line);
    ones.set_line(uint64_t{1} << 60);  // None that a head has given.
    CHECK(absl::IsFailedPrecondition(after.Check(ones)));
  }
  SECTION("the head was killed, and the servers' state is another's before it is heard of") {
    WorkerStates after;
    after.BeginEpoch(2);
    after.Report(kTwo, WaitsFor(5));
    REQUIRE(after.Answer(kTwo, 6, 0, true, false).take());
    CHECK(absl::IsFailedPrecondition(after.Check(ones)));
  }
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

TEST_CASE("an upload is there when all servers that hold some of the state have it, of one step",
          "[states]") {
  WorkerStates states;
  states.BeginEpoch(3);
  const std::set<uint32_t> holders = {0, 2};
  states.Report(kOne, Has(4));
  REQUIRE(states.Ask(4, kNow) == kOne);
  const uint64_t upload = states.upload();
  CHECK(states.Answer(kOne, 4, 0, true, false).wanted() == upload);
  CHECK_FALSE(states.OnStaged(2, upload, 4, holders));
  CHECK_FALSE(states.OnStaged(0, upload - 1, 4, holders));
  SECTION("it is") { CHECK(states.OnStaged(0, upload, 4, holders) == 4); }
  SECTION("its sender calls two states by one number: it is asked anew") {
    CHECK_FALSE(states.OnStaged(0, upload, 5, holders));
    CHECK(states.Ask(4, kNow) == kOne);
    CHECK(states.upload() != upload);
  }
  SECTION("its sender says that it came to nothing: the same") {
    WorkerStateReport report = Has(5);
    report.set_failed(upload);
    states.Report(kOne, report);
    CHECK(states.Ask(5, kNow) == kOne);
    CHECK_FALSE(states.OnStaged(0, upload, 4, holders));
    states.Report(kOne, report);
    CHECK(states.Answer(kOne, 5, 0, true, false).wanted() == states.upload());
  }
  SECTION("a server has begun anew meanwhile: the same, and no number comes twice") {
    states.BeginEpoch(4);
    CHECK_FALSE(states.OnStaged(0, upload, 4, holders));
    CHECK(states.Answer(kOne, 4, 0, true, false).wanted() == 0);
    CHECK(states.Ask(4, kNow) == kOne);
    CHECK(states.upload() > upload);
    CHECK(states.NewUpload() > states.upload());
  }
}

TEST_CASE("where servers go back to the saved state, no upload is there any more", "[states]") {
  WorkerStates states;
  states.Report(kOne, Has(4));
  REQUIRE(states.Ask(4, kNow) == kOne);
  states.OnUploaded(4, kNow);
  states.OnSaved(2);
  states.OnRestored();
  const WorkerStateReply reply = states.Answer(kOne, 4, 0, true, false);
  CHECK(reply.uploaded() == 0);
  CHECK(reply.saved() == 2);
  CHECK(states.Ask(4, kNow + absl::Minutes(1)) == kOne);
}

}  // namespace recon
