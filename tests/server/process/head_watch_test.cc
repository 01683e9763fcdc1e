#include "server/process/head_watch.h"

#include <vector>

#include "catch2/catch.hpp"

namespace recon {
namespace {

const absl::Time kNow = absl::UnixEpoch() + absl::Hours(1);

// What a server says in a minute, a look each 100 ms.
std::vector<std::string> SaidInAMinute(const HeadWatch::Seen& seen) {
  HeadWatch watch;
  std::vector<std::string> said;
  for (int look = 0; look <= 600; ++look) {
    if (auto line = watch.Note(seen, kNow + look * absl::Milliseconds(100))) said.push_back(*line);
  }
  return said;
}

}  // namespace

TEST_CASE("a server without its head says so again and again, with the address and how long",
          "[head_watch]") {
  HeadWatch::Seen seen;
  seen.head = "10.0.0.1:7070";
  seen.heard_at = kNow;
  SECTION("there is no connection") {
    seen.error = "connection refused";
    const auto said = SaidInAMinute(seen);
    REQUIRE(said.size() == 2);
    CHECK(said[0] ==
          "waiting for the head at 10.0.0.1:7070, which cannot be reached for 10s: connection refused");
    CHECK(said[1] ==
          "waiting for the head at 10.0.0.1:7070, which cannot be reached for 30s: connection refused");
  }
  SECTION("it is stopped, and says nothing") {
    const auto said = SaidInAMinute(seen);
    REQUIRE(said.size() == 2);
    CHECK(said[0] == "waiting for the head at 10.0.0.1:7070, silent for 10s");
  }
  SECTION("it drains the job") {
    seen.drains = true;
    const auto said = SaidInAMinute(seen);
    REQUIRE(said.size() == 2);
    CHECK(said[0] ==
          "the head at 10.0.0.1:7070 drains the job, and was heard of 10s ago: waiting for its end");
  }
}

TEST_CASE("a server whose head speaks and whose job moves says nothing", "[head_watch]") {
  HeadWatch watch;
  HeadWatch::Seen seen;
  for (int second = 0; second < 100; ++second) {
    seen.heard_at = kNow + absl::Seconds(second);
    CHECK_FALSE(watch.Note(seen, seen.heard_at));
  }
}

TEST_CASE("what the head says that the job waits for is passed on at once, then ever less often",
          "[head_watch]") {
  HeadWatch watch;
  HeadWatch::Seen seen;
  seen.head = "head:1";
  seen.waits_for = "the job has not moved for 10s: it waits for server 2";
  std::vector<int> said;
  for (int second = 0; second <= 140; ++second) {
    seen.heard_at = kNow + absl::Seconds(second);
    const auto line = watch.Note(seen, seen.heard_at);
    if (!line) continue;
    said.push_back(second);
    CHECK(*line == "the head at head:1 says: " + seen.waits_for);
  }
  CHECK(said == std::vector<int>{0, 10, 30, 70, 130});
}

}  // namespace recon
