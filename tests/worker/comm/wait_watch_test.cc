#include "worker/comm/wait_watch.h"

#include <string>
#include <utility>
#include <vector>

#include "catch2/catch.hpp"
#include "common/base/away_words.h"
#include "worker/comm/server_watch.h"

namespace recon {
namespace {

const absl::Time kNow = absl::UnixEpoch() + absl::Hours(1);

WaitWatch::Seen Quiet() {
  WaitWatch::Seen seen;
  seen.head = "10.0.0.1:7070";
  seen.answered_at = kNow;
  return seen;
}

// What a worker says with a look each 500 ms, and at which second.
template <typename Change>
std::vector<std::pair<int, std::string>> Said(int seconds, WaitWatch::Seen seen, const Change& change) {
  WaitWatch watch;
  std::vector<std::pair<int, std::string>> said;
  for (int look = 0; look <= 2 * seconds; ++look) {
    const absl::Time now = kNow + look * absl::Milliseconds(500);
    change(&seen, now);
    if (auto line = watch.Note(seen, now)) said.emplace_back(look / 2, *line);
  }
  return said;
}
void Answered(WaitWatch::Seen* seen, absl::Time now) { seen->answered_at = now; }
void NotAnswered(WaitWatch::Seen*, absl::Time) {}

}  // namespace

TEST_CASE("a worker that waits says for what again and again, and for how long", "[wait_watch]") {
  WaitWatch::Seen seen = Quiet();
  seen.waits_for = "the answers to its pushes";
  seen.away = {"server 2 at host:2 cannot be reached for 9s: connection refused"};
  const auto said = Said(140, seen, Answered);
  REQUIRE(said.size() == 4);
  CHECK(said[0].first == 10);
  CHECK(said[0].second ==
        "waiting for 10s for the answers to its pushes: server 2 at host:2 cannot be reached for 9s: "
        "connection refused");
  CHECK(said[1].first == 30);
  CHECK(said[2].first == 70);
  CHECK(said[3].first == 130);
}

TEST_CASE("a worker that computes says nothing, however long a batch takes", "[wait_watch]") {
  WaitWatch::Seen seen = Quiet();
  CHECK(Said(100, seen, Answered).empty());
  // It waits between batches.
  uint64_t look = 0;
  CHECK(Said(100, seen, [&](WaitWatch::Seen* now_seen, absl::Time now) {
          now_seen->answered_at = now;
          now_seen->progress = ++look / 18;
          now_seen->waits_for = look % 18 < 9 ? "work" : nullptr;
        }).empty());
}

TEST_CASE("a moment between two waits does not end them", "[wait_watch]") {
  WaitWatch::Seen seen = Quiet();
  int look = 0;
  const auto said = Said(12, seen, [&](WaitWatch::Seen* now_seen, absl::Time now) {
    now_seen->answered_at = now;
    now_seen->waits_for = ++look % 5 == 0 ? nullptr : "work";
  });
  REQUIRE(said.size() == 1);
  CHECK(said[0].first >= 10);
}

TEST_CASE("a head that does not answer is dead, stopped in good order, or waits itself", "[wait_watch]") {
  WaitWatch::Seen seen = Quiet();
  seen.error = absl::UnavailableError("connection refused");
  std::string expected;
  SECTION("dead") { expected = "the head at 10.0.0.1:7070 cannot be reached for 10s: connection refused"; }
  SECTION("stopped") {
    seen.stopped = true;
    expected = "the head at 10.0.0.1:7070 was stopped in good order, and last heard of 10s ago";
  }
  SECTION("draining") {
    seen.error = DrainingError();
    expected = "the head at 10.0.0.1:7070 drains the job";
  }
  SECTION("there, and it waits for a server") {
    seen.error = JobWaitsError("server 2 at host:2, which restores its state");
    expected =
        "the head at 10.0.0.1:7070 is there, and says: the job waits for server 2 at host:2, which restores "
        "its "
        "state";
  }
  const auto said = Said(11, seen, NotAnswered);
  REQUIRE(said.size() == 1);
  CHECK(said[0].first == 10);
  CHECK(said[0].second == expected);
}

TEST_CASE("what the head says of the job is passed on at once", "[wait_watch]") {
  WaitWatch::Seen seen = Quiet();
  seen.waits_for = "the answers to its pushes";
  const auto said = Said(50, seen, [](WaitWatch::Seen* now_seen, absl::Time now) {
    now_seen->answered_at = now;
    if (now >= kNow + absl::Seconds(11))
      now_seen->head_says = "the job has not moved for 11s: it waits for w3";
  });
  REQUIRE(said.size() == 4);
  CHECK(said[2].first == 21);
  CHECK(said[3].first == 41);
  CHECK(said[0] == std::make_pair(10, std::string("waiting for 10s for the answers to its pushes")));
  CHECK(said[1].first == 11);
  CHECK(
      said[1].second ==
      "waiting for 11s for the answers to its pushes: the head at 10.0.0.1:7070 says: the job has not moved "
      "for 11s: it waits for w3");
}

TEST_CASE("a server that was stopped, one that is dead and one that begins are three things",
          "[server_watch]") {
  ServerWatch watch;
  watch.SetAddresses({"host:0", "host:1", "host:2"});
  watch.Note(0, absl::OkStatus(), kNow);
  watch.Note(1, DrainingError(), kNow);
  watch.Note(1, absl::UnavailableError("connection refused"), kNow + absl::Seconds(1));
  watch.Note(2, absl::UnavailableError("connection refused"), kNow);
  CHECK(watch.Away(kNow + absl::Seconds(1)).others.empty());  // A connection that begins anew is no absence.
  CHECK(watch.Away(kNow + absl::Seconds(5)).others ==
        std::vector<std::string>{"server 1 at host:1 was stopped in good order 5s ago",
                                 "server 2 at host:2 cannot be reached for 5s: connection refused"});
  watch.Note(1, NoPlaceError(), kNow + absl::Seconds(6));
  watch.Note(2, absl::FailedPreconditionError("another epoch"), kNow + absl::Seconds(6));
  CHECK(watch.Away(kNow + absl::Seconds(7)).others ==
        std::vector<std::string>{"server 1 at host:1 restores its state"});
  CHECK(watch.Away(kNow + absl::Seconds(7)).head.empty());
  watch.Note(0, DrainingError(), kNow + absl::Seconds(7));
  CHECK(watch.Away(kNow + absl::Seconds(10)).head == "the head at host:0 was stopped in good order 3s ago");
  CHECK(watch.Away(kNow + absl::Seconds(10)).head_stopped);
  watch.SetAddresses({"host:0", "host:7", "host:2"});
  CHECK(watch.Away(kNow + absl::Seconds(9)).others.empty());
  watch.Note(9, absl::UnavailableError("of a server that is none"), kNow);
}

}  // namespace recon
