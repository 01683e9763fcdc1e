#include "server/trace/trace_collector.h"

#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "catch2/catch.hpp"
#include "common/base/clock.h"
#include "common/base/limits.h"
#include "common/trace/span_pieces.h"

namespace recon {
namespace {

constexpr int64_t kSecond = 1'000'000'000;

TraceMember Worker(const std::string& name, uint32_t process = 0) {
  TraceMember member;
  member.set_role(TRACE_ROLE_WORKER);
  member.set_name(name);
  member.set_process(process);
  return member;
}

TraceMember Server(const std::string& name) {
  TraceMember member;
  member.set_role(TRACE_ROLE_SERVER);
  member.set_name(name);
  return member;
}

// A trace whose client keeps what it is sent.
struct Collected {
  // Of `seconds`, from now on.
  explicit Collected(const std::vector<TraceMember>& members, int64_t seconds = 10) : now(MonotonicNanos()) {
    REQUIRE(Begin().ok());
    collector.Announce(members, now, now + seconds * kSecond);
    trace = collector.order(now).trace;
    REQUIRE(trace != 0);
  }
  absl::Status Begin() {
    return collector.Begin("10.0.0.9:4711", [this](const TraceUpdate& update) {
      if (refuses && update.has_delivery()) return false;
      updates.push_back(update);
      return true;
    });
  }
  absl::StatusOr<TraceReceipt> Deliver(const TraceMember& member, int spans, bool last, int64_t at_second) {
    trace::SpanPieces pieces;
    for (int i = 0; i < spans; ++i) pieces.Add({1, "main"}, {"computing", 5, 6, {}, false});
    TraceDelivery piece = pieces.Take();
    piece.set_trace(trace);
    *piece.mutable_member() = member;
    piece.set_last(last);
    return collector.Deliver(std::move(piece), now + at_second * kSecond);
  }
  // "name: why" of each gap.
  std::vector<std::string> Gaps() {
    std::vector<std::string> gaps;
    for (const TraceGap& gap : updates.back().outcome().gaps())
      gaps.push_back(gap.member().name() + ": " + gap.why());
    return gaps;
  }

  TraceCollector collector;
  std::vector<TraceUpdate> updates;
  bool refuses = false;
  int64_t now;
  uint64_t trace = 0;
};

}  // namespace

TEST_CASE("a trace goes to its client from its begin to who has delivered all", "[trace]") {
  Collected trace({Server("head"), Worker("a"), Worker("b")});
  CHECK(trace.collector.order(trace.now + kSecond).left == absl::Seconds(9));
  CHECK(trace.collector.order(trace.now + 10 * kSecond).trace == 0);
  REQUIRE(trace.Deliver(Server("head"), 2, true, 10).ok());
  REQUIRE(trace.Deliver(Worker("a"), 3, false, 4).ok());
  REQUIRE(trace.Deliver(Worker("a"), 1, true, 10).ok());
  CHECK_FALSE(trace.collector.complete());  // b has not said anything.
  REQUIRE(trace.Deliver(Worker("b"), 0, true, 10).ok());
  CHECK(trace.collector.complete());
  trace.collector.End(trace.now + 11 * kSecond);
  REQUIRE(trace.updates.size() == 6);
  CHECK(trace.updates.front().begun().members_size() == 3);
  CHECK(trace.updates[2].delivery().spans().name_size() == 3);
  CHECK(trace.updates.back().outcome().end_ns() == trace.now + 10 * kSecond);
  CHECK(trace.Gaps().empty());
}

TEST_CASE("who has died, said nothing, or was started anew is named with what lacks", "[trace]") {
  Collected trace({Worker("dies"), Worker("silent"), Worker("again")});
  REQUIRE(trace.Deliver(Worker("dies", 1), 1, false, 6).ok());
  REQUIRE(trace.Deliver(Worker("again", 2), 1, false, 3).ok());
  REQUIRE(trace.Deliver(Worker("again", 3), 1, true, 10).ok());
  CHECK_FALSE(trace.collector.complete());
  trace.collector.End(trace.now + 13 * kSecond);
  const std::vector<std::string> gaps = trace.Gaps();
  REQUIRE(gaps.size() == 3);
  CHECK(gaps[0] == "silent: it has delivered nothing");
  CHECK(gaps[1] == "again: it has delivered nothing in the last 7.0 s");
  CHECK(gaps[2] == "dies: it has delivered nothing in the last 4.0 s");
}

TEST_CASE("a second trace is refused while there is one, and says for whom and how long yet", "[trace]") {
  Collected trace({Worker("a")}, /*seconds=*/60);
  const absl::Status second = trace.Begin();
  CHECK(absl::IsFailedPrecondition(second));
  CHECK(absl::StrContains(second.message(), "for 10.0.0.9:4711"));
  CHECK(absl::StrContains(second.message(), "it ends in "));
  const uint64_t first = trace.trace;
  trace.collector.End(trace.now);
  CHECK(trace.collector.order(trace.now).trace == 0);
  CHECK(absl::IsFailedPrecondition(trace.collector.CheckCurrent(first)));
  CHECK(absl::IsFailedPrecondition(trace.Deliver(Worker("a"), 1, false, 1).status()));
  CHECK(trace.Begin().ok());
}

TEST_CASE("spans of another trace, and pieces that are none, are refused", "[trace]") {
  Collected trace({Worker("a")});
  CHECK(absl::IsFailedPrecondition(trace.collector.CheckCurrent(trace.trace + 1)));
  CHECK(absl::IsFailedPrecondition(trace.collector.CheckCurrent(0)));
  CHECK(trace.collector.CheckCurrent(trace.trace).ok());
  TraceDelivery piece;
  piece.set_trace(trace.trace + 1);
  CHECK(absl::IsFailedPrecondition(trace.collector.Deliver(piece, trace.now).status()));
  piece.set_trace(trace.trace);
  piece.mutable_spans()->add_name(3);
  CHECK(absl::IsInvalidArgument(trace.collector.Deliver(piece, trace.now).status()));
  CHECK(trace.updates.size() == 1);
}

TEST_CASE("a member that records too much is told to stop, and what lacks is said", "[trace]") {
  Collected trace({Worker("a")});
  const int piece = limits::kTracePieceSpansMax;
  uint64_t spans = 0;
  for (bool stopped = false; !stopped;) {
    const auto receipt = trace.Deliver(Worker("a"), piece, false, 1);
    REQUIRE(receipt.ok());
    stopped = receipt->stop();
    if (!stopped) spans += static_cast<uint64_t>(piece);
    REQUIRE(spans <= limits::kTraceMemberSpansMax);
  }
  CHECK(spans + static_cast<uint64_t>(piece) > limits::kTraceMemberSpansMax);
  CHECK(trace.collector.complete());  // Nothing of it is waited for.
  trace.collector.End(trace.now + 10 * kSecond);
  REQUIRE(trace.Gaps().size() == 1);
  CHECK(absl::StrContains(trace.Gaps()[0], absl::StrCat("its first ", spans, " spans")));
}

TEST_CASE("what a client does not read fast enough is left out, and said", "[trace]") {
  Collected trace({Worker("a")});
  trace.refuses = true;
  REQUIRE(trace.Deliver(Worker("a"), 5, true, 10).ok());
  trace.collector.End(trace.now + 10 * kSecond);
  REQUIRE(trace.Gaps().size() == 1);
  CHECK(absl::StrContains(trace.Gaps()[0], "not read fast enough"));
}

}  // namespace recon
