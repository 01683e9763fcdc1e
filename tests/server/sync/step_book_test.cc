#include "server/sync/step_book.h"

#include <map>
#include <random>
#include <set>

#include "absl/strings/match.h"
#include "catch2/catch.hpp"
#include "common/base/limits.h"

namespace recon {
namespace {

const WorkerId kOne(1), kTwo(2), kThree(3);
using Shards = std::vector<uint32_t>;
using Closings = std::vector<StepClosing>;

Incarnation Of(WorkerId worker) { return Incarnation(100 + worker.value()); }

// A book of `shards` shards, all of them here, and workers that take part from step 0.
struct Job {
  Job(int bound, uint32_t shards, const std::vector<WorkerId>& workers,
      StepBook::Authority authority = StepBook::Authority::kDecides)
      : book(bound, authority, &closed) {
    closed.SetShards(shards);
    for (const WorkerId worker : workers) {
      book.Admit(worker, Of(worker), 0);
      book.Activate(worker, 0, /*resumes=*/false);
    }
  }

  ClosedSteps closed;
  StepBook book;
};

// One server has all shards.
bool Note(StepBook* book, WorkerId worker, uint64_t step, const Shards& shards, size_t all) {
  return book->NoteParts(worker, Of(worker), step, shards, all, all);
}

std::string Said(const Closings& closings) {
  std::string said;
  for (const StepClosing& closing : closings) {
    said += "step " + std::to_string(closing.step) + " shards";
    for (const uint32_t shard : closing.shards) said += " " + std::to_string(shard);
    said += " of";
    for (const auto& [worker, incarnation] : closing.contributors)
      said += " " + std::to_string(worker.value());
    said += "; ";
  }
  return said;
}

}  // namespace

TEST_CASE("a step is closed shard by shard, when everybody's part has come", "[sync]") {
  Job job(0, 3, {kOne, kTwo});
  StepBook& book = job.book;
  CHECK_FALSE(Note(&book, kOne, 0, {0, 1}, 3));
  CHECK(book.TakeClosings().empty());
  CHECK_FALSE(Note(&book, kTwo, 0, {1, 2}, 3));
  CHECK(Said(book.TakeClosings()) == "step 0 shards 1 of 1 2; ");
  CHECK(book.Closed(0, 1));
  CHECK_FALSE(book.Closed(0, 0));
  CHECK(book.MayAnswer(0, Shards{1}));
  CHECK_FALSE(book.MayAnswer(0, Shards{0, 1}));
  CHECK(Note(&book, kTwo, 0, {0}, 3));
  CHECK(Said(book.TakeClosings()) == "step 0 shards 0 of 1 2; ");
  CHECK(book.gate().frontier() == 0);
  CHECK(Note(&book, kOne, 0, {2}, 3));
  CHECK(Said(book.TakeClosings()) == "step 0 shards 2 of 1 2; ");
  CHECK(book.gate().frontier() == 1);
  CHECK(book.TakeClosings().empty());
}

TEST_CASE("shards that nobody pushes wait for nobody, and those with other contributors are closed apart",
          "[sync]") {
  Job job(0, 4, {kOne, kTwo});
  StepBook& book = job.book;
  CHECK(Note(&book, kOne, 0, {0, 1}, 2));
  CHECK(Note(&book, kTwo, 0, {1, 2}, 2));
  CHECK(Said(book.TakeClosings()) == "step 0 shards 0 of 1; step 0 shards 1 of 1 2; step 0 shards 2 of 2; ");
  CHECK(job.closed.first_open(3) == 0);
  CHECK(book.Closed(0, 3));  // All have pushed the step: nothing comes for it.
}

TEST_CASE("steps are closed in their order, whichever comes first", "[sync]") {
  Job job(0, 1, {kOne, kTwo});
  StepBook& book = job.book;
  CHECK(Note(&book, kOne, 1, {0}, 1));
  CHECK(Note(&book, kTwo, 1, {0}, 1));
  CHECK(book.TakeClosings().empty());
  CHECK(Note(&book, kOne, 0, {0}, 1));
  CHECK(Note(&book, kTwo, 0, {0}, 1));
  CHECK(Said(book.TakeClosings()) == "step 0 shards 0 of 1 2; step 1 shards 0 of 1 2; ");
}

TEST_CASE("what a worker that goes has pushed to open steps counts in none", "[sync]") {
  Job job(0, 2, {kOne, kTwo, kThree});
  StepBook& book = job.book;
  Note(&book, kOne, 0, {0, 1}, 2);
  Note(&book, kThree, 0, {0}, 2);
  book.Expel(kThree);
  Note(&book, kTwo, 0, {0, 1}, 2);
  CHECK(Said(book.TakeClosings()) == "step 0 shards 0 1 of 1 2; ");
}

TEST_CASE("a process that takes a name over has delivered nothing", "[sync]") {
  Job job(0, 2, {kOne});
  StepBook& book = job.book;
  CHECK_FALSE(Note(&book, kOne, 0, {0}, 2));
  book.Admit(kOne, Incarnation(7), 0);
  CHECK_FALSE(book.NoteParts(kOne, Incarnation(7), 0, Shards{1}, 2, 2));
  CHECK(book.NoteParts(kOne, Incarnation(7), 0, Shards{0}, 2, 2));
}

TEST_CASE("a parked worker's pushes are told so until it takes part again", "[sync]") {
  Job job(0, 1, {kOne, kTwo});
  StepBook& book = job.book;
  REQUIRE(book.Park(kTwo));
  CHECK(absl::IsAborted(book.CheckStep(kTwo, 0, Shards{0})));
  CHECK(Note(&book, kOne, 0, {0}, 1));
  CHECK(Said(book.TakeClosings()) == "step 0 shards 0 of 1; ");
  // A repetition of what is closed gets its answer from the ledger.
  CHECK(book.CheckStep(kTwo, 0, Shards{0}).ok());
  CHECK(book.Activate(kTwo, 0, /*resumes=*/false) == 1);
  CHECK(book.CheckStep(kTwo, 1, Shards{0}).ok());
}

TEST_CASE("who is parked keeps what it has pushed whole, as shards may be closed with it", "[sync]") {
  Job job(0, 2, {kOne, kTwo});
  StepBook& book = job.book;
  CHECK(Note(&book, kOne, 0, {0, 1}, 2));
  CHECK_FALSE(Note(&book, kTwo, 0, {0}, 2));
  CHECK(Said(book.TakeClosings()) == "step 0 shards 0 of 1 2; ");
  REQUIRE(book.Park(kOne));
  CHECK(book.CheckStep(kOne, 0, Shards{1}).ok());
  CHECK(absl::IsAborted(book.CheckStep(kOne, 1, Shards{0})));
  // Also when it has come back and is parked again.
  CHECK(book.Activate(kOne, 1, /*resumes=*/false) == 1);
  REQUIRE(book.Park(kOne));
  CHECK(book.CheckStep(kOne, 0, Shards{1}).ok());
  CHECK(Note(&book, kTwo, 0, {1}, 2));
  CHECK(Said(book.TakeClosings()) == "step 0 shards 1 of 1 2; ");
  CHECK(book.Activate(kOne, 1, /*resumes=*/false) == 1);
  CHECK(book.CheckStep(kOne, 1, Shards{0}).ok());
}

TEST_CASE("what a parked worker begins counts in no step before it comes back, whoever reports it",
          "[sync]") {
  Job job(0, 2, {kOne, kTwo});
  StepBook& book = job.book;
  REQUIRE(book.Park(kOne));
  CHECK_FALSE(Note(&book, kTwo, 0, {0}, 2));
  CHECK(Said(book.TakeClosings()) == "step 0 shards 0 of 2; ");
  CHECK_FALSE(book.MayReport(kOne, Of(kOne), 0));
  SECTION("it comes back") { CHECK(book.Activate(kOne, 0, /*resumes=*/false) == 1); }
  SECTION("its process registers again, and would go on with what it has begun") {
    book.Admit(kOne, Of(kOne), 0);
    CHECK(absl::IsAborted(book.CheckStep(kOne, 0, Shards{1})));
    CHECK(book.Activate(kOne, 0, /*resumes=*/true) == 1);
  }
  CHECK_FALSE(book.MayReport(kOne, Of(kOne), 0));
  CHECK(absl::IsAborted(book.CheckStep(kOne, 0, Shards{1})));
  CHECK(book.MayReport(kOne, Of(kOne), 1));
}

TEST_CASE("a quorum waits for all in a step that is closed in part already", "[sync]") {
  Job job(0, 2, {kOne, kTwo});
  StepBook& book = job.book;
  const absl::Time now = absl::UnixEpoch();
  CHECK(Note(&book, kOne, 0, {0, 1}, 2));
  CHECK_FALSE(Note(&book, kTwo, 0, {0}, 2));
  CHECK(Said(book.TakeClosings()) == "step 0 shards 0 of 1 2; ");
  book.SetQuorum(StepQuorum(1, absl::ZeroDuration()));
  CHECK(book.WatchQuorum(now) == absl::InfiniteFuture());
  CHECK(Note(&book, kTwo, 0, {1}, 2));
  CHECK(Said(book.TakeClosings()) == "step 0 shards 1 of 1 2; ");
  CHECK(Note(&book, kOne, 1, {0, 1}, 2));
  CHECK(book.WatchQuorum(now) == now);
}

TEST_CASE("who has begun a push is not parked, nor is anybody of an asynchronous job", "[sync]") {
  Job job(0, 2, {kOne});
  StepBook& book = job.book;
  Note(&book, kOne, 0, {0}, 2);
  CHECK_FALSE(book.Park(kOne));
  CHECK_FALSE(book.Park(kTwo));
  Job other(-1, 2, {kOne});
  StepBook& asynchronous = other.book;
  CHECK_FALSE(asynchronous.Park(kOne));
}

TEST_CASE("a push too far ahead is no worker's", "[sync]") {
  Job job(2, 1, {kOne});
  StepBook& book = job.book;
  CHECK(book.CheckStep(kOne, 1 + limits::kStepsAheadMax, Shards{0}).ok());
  const absl::Status far = book.CheckStep(kOne, 2 + limits::kStepsAheadMax, Shards{0});
  CHECK(absl::IsInvalidArgument(far));
  CHECK(absl::StrContains(far.message(), "the worker's next is 2"));
  CHECK(book.MayReport(kOne, Of(kOne), 1 + limits::kStepsAheadMax));
  CHECK_FALSE(book.MayReport(kOne, Of(kOne), 2 + limits::kStepsAheadMax));
  CHECK_FALSE(book.MayReport(kOne, Incarnation(7), 0));
}

TEST_CASE("what a shard made of a part decides whether the push counts", "[sync]") {
  Job job(0, 2, {kOne, kTwo});
  StepBook& book = job.book;
  const std::vector<PushOutcome> taken = {PushOutcome::kTaken, PushOutcome::kTaken};
  const Shards both = {0, 1};
  CHECK(book.CheckCounts(kOne, 0, both, taken).ok());
  CHECK(absl::IsAborted(book.CheckCounts(kOne, 0, both, {PushOutcome::kTaken, PushOutcome::kLate})));
  Note(&book, kTwo, 0, both, 2);
  Note(&book, kOne, 0, both, 2);
  REQUIRE(book.TakeClosings().size() == 1);
  // Closed now: what was taken for it afterwards came too late, what the ledger has counts.
  CHECK(absl::IsAborted(book.CheckCounts(kOne, 0, both, taken)));
  CHECK(book.CheckCounts(kOne, 0, both, {PushOutcome::kDuplicate, PushOutcome::kDuplicate}).ok());
  CHECK(
      absl::IsUnavailable(book.CheckCounts(kOne, 0, both, {PushOutcome::kPending, PushOutcome::kDuplicate})));
  Job other(-1, 2, {kOne});
  StepBook& asynchronous = other.book;
  CHECK(asynchronous.CheckCounts(kOne, 0, both, taken).ok());
  CHECK(absl::IsAborted(asynchronous.CheckCounts(kOne, 0, both, {PushOutcome::kTaken, PushOutcome::kLate})));
}

TEST_CASE("a quorum closes a step without those who are late, all or nothing of them", "[sync]") {
  Job job(0, 2, {kOne, kTwo, kThree});
  StepBook& book = job.book;
  book.SetQuorum(StepQuorum(2, absl::Seconds(1)));
  const absl::Time now = absl::FromUnixSeconds(100);
  CHECK(book.WatchQuorum(now) == absl::InfiniteFuture());
  Note(&book, kOne, 0, {0, 1}, 2);
  Note(&book, kThree, 0, {0}, 2);
  Note(&book, kTwo, 0, {0, 1}, 2);
  CHECK(book.TakeClosings().empty());
  CHECK(book.WatchQuorum(now) == now + absl::Seconds(1));
  CHECK(book.ParkLate() == std::vector<WorkerId>{kThree});
  CHECK(Said(book.TakeClosings()) == "step 0 shards 0 1 of 1 2; ");
  CHECK(book.late_steps(kThree) == 1);
  CHECK(book.late_steps(kOne) == 0);
}

TEST_CASE("all workers push a step once the last has begun it", "[sync]") {
  Job job(0, 1, {kOne, kTwo});
  StepBook& book = job.book;
  CHECK_FALSE(book.NoteBegun(kOne, Of(kOne), 0, 5));
  CHECK_FALSE(book.NoteBegun(kThree, Of(kThree), 0, 6));
  CHECK(book.NoteBegun(kTwo, Of(kTwo), 0, 7));
  // With a quorum none of its shards closes before the whole step does.
  book.SetQuorum(StepQuorum(1, absl::Seconds(1)));
  CHECK_FALSE(book.NoteBegun(kTwo, Of(kTwo), 0, 7));
  CHECK(job.closed.FirstRecordFrom(0, 8) == 5);
  CHECK(job.closed.FirstRecordFrom(1, 8) == 8);
}

TEST_CASE("who follows closes nothing itself, and each closing once", "[sync]") {
  Job job(0, 4, {}, StepBook::Authority::kFollows);
  StepBook& book = job.book;
  book.Admit(kOne, Of(kOne), 0);
  CHECK(book.NoteParts(kOne, Of(kOne), 0, Shards{1, 3}, 4, 2));
  CHECK(book.TakeClosings().empty());
  const StepClosing closing{0, {1}, {{kOne, Of(kOne)}}};
  CHECK(job.closed.NoteNew(closing).shards == Shards{1});
  CHECK(job.closed.FrontierInLog(book.gate().frontier()) == 0);
  job.closed.NoteInLog(0, 0);
  CHECK(job.closed.NoteNew(closing).shards.empty());
  CHECK(book.Closed(0, 1));
  CHECK_FALSE(book.Closed(0, 3));
  book.Follow(1, true);
  CHECK(book.Closed(0, 3));
}

TEST_CASE("whoever decides forgets what a server had that begins anew", "[sync]") {
  Job job(0, 2, {kOne});
  StepBook& book = job.book;
  CHECK_FALSE(Note(&book, kOne, 0, {0}, 2));
  book.ForgetPartsOf(Shards{0});
  CHECK_FALSE(Note(&book, kOne, 0, {1}, 2));
  CHECK(Said(book.TakeClosings()) == "step 0 shards 1 of 1; ");
  CHECK(Note(&book, kOne, 0, {0}, 2));
  CHECK(Said(book.TakeClosings()) == "step 0 shards 0 of 1; ");
}

TEST_CASE("after a replay steps go on where the log says, by the shards that a server knows of", "[sync]") {
  ClosedSteps closed;
  closed.SetShards(3);
  closed.Restore({4, 4, 4});
  closed.NoteReplayed({5, {0, 2}, {}});
  CHECK(closed.FrontierOf(Shards{0, 1, 2}) == 5);
  CHECK(closed.FrontierOf(Shards{0, 2}) == 6);
  CHECK(closed.FrontierOf(Shards{}) == 0);
}

TEST_CASE("under another bound steps go on beyond all that was begun", "[sync]") {
  Job job(0, 2, {kOne, kTwo});
  StepBook& book = job.book;
  Note(&book, kOne, 3, {0}, 2);
  CHECK(book.BeginAnew(0, 0) == 4);
  CHECK(book.TakeClosings().empty());
  CHECK(book.BeginAnew(-1, 9) == 9);
}

TEST_CASE("whatever comes and goes, a shard's steps close once, in order, with who took part", "[sync]") {
  for (uint32_t seed = 0; seed < 200; ++seed) {
    std::mt19937 random(seed);
    INFO("seed " << seed);
    const uint32_t shards = 1 + random() % 4;
    const std::vector<WorkerId> workers = {kOne, kTwo, kThree};
    Job job(0, shards, workers);
    StepBook& book = job.book;
    std::map<WorkerId, uint64_t> next;            // Step of each that takes part.
    std::map<WorkerId, std::set<uint32_t>> left;  // Shards of that step that it has not pushed.
    const auto begin = [&](WorkerId worker, uint64_t step) {
      next[worker] = step;
      for (uint32_t i = 0; i < shards; ++i) left[worker].insert(i);
    };
    for (const WorkerId worker : workers) begin(worker, 0);
    std::vector<uint64_t> closed(shards, 0);
    for (int move = 0; move < 300; ++move) {
      const WorkerId worker = workers[random() % workers.size()];
      if (random() % 20 == 0) {
        book.Expel(worker);
        next.erase(worker);
        left.erase(worker);
      } else if (next.count(worker) == 0) {
        book.Admit(worker, Of(worker), 0);
        begin(worker, book.Activate(worker, 0, false));
      } else if (!left[worker].empty()) {
        const uint32_t shard = *std::next(left[worker].begin(), random() % left[worker].size());
        left[worker].erase(shard);
        CHECK(Note(&book, worker, next[worker], {shard}, shards) == left[worker].empty());
      }
      for (const StepClosing& closing : book.TakeClosings()) {
        CHECK(!closing.contributors.empty());
        for (const uint32_t shard : closing.shards) {
          CHECK(closing.step >= closed[shard]);
          closed[shard] = closing.step + 1;
        }
        for (const auto& [contributor, incarnation] : closing.contributors)
          CHECK(next.count(contributor) > 0);
      }
      // Whose push is answered begins the next step.
      for (const WorkerId other : workers) {
        if (next.count(other) > 0 && left[other].empty() && book.gate().frontier() > next[other]) {
          begin(other, next[other] + 1);
        }
      }
    }
    CHECK(book.gate().frontier() > 0);
  }
}

}  // namespace recon
