#include "server/membership/membership.h"

#include "catch2/catch.hpp"
#include "common/base/limits.h"

namespace recon {
namespace {

const absl::Time kStart = absl::FromUnixSeconds(1000);
const WorkerId kOne(1);

Membership::Member Process(uint64_t incarnation) {
  Membership::Member member;
  member.name = "w";
  member.incarnation = Incarnation(incarnation);
  return member;
}

Membership Fresh() { return Membership({absl::Seconds(1), absl::Seconds(3)}); }

}  // namespace

TEST_CASE("a silent member is suspect, then gone, and may come back", "[membership]") {
  Membership members = Fresh();
  REQUIRE(members.Admit(kOne, Process(7), kStart).ok());
  CHECK(members.Hear(kOne, Incarnation(7), kStart).ok());
  CHECK_FALSE(members.suspect(*members.Find(kOne), kStart + absl::Seconds(1)));
  CHECK(members.suspect(*members.Find(kOne), kStart + absl::Seconds(2)));
  CHECK(members.Expire(kStart + absl::Seconds(3)).empty());
  CHECK(members.Expire(kStart + absl::Milliseconds(3001)) == std::vector<WorkerId>{kOne});
  CHECK(members.Expire(kStart + absl::Seconds(9)).empty());
  CHECK(members.alive() == 0);
  CHECK(absl::IsFailedPrecondition(members.Hear(kOne, Incarnation(7), kStart)));
  REQUIRE(members.Admit(kOne, Process(7), kStart + absl::Seconds(10)).ok());
  CHECK(members.Hear(kOne, Incarnation(7), kStart + absl::Seconds(10)).ok());
  CHECK(members.alive() == 1);
}

TEST_CASE("heartbeats keep a member", "[membership]") {
  Membership members = Fresh();
  REQUIRE(members.Admit(kOne, Process(7), kStart).ok());
  for (int s = 1; s < 20; ++s) {
    CHECK(members.Hear(kOne, Incarnation(7), kStart + absl::Seconds(s)).ok());
    CHECK(members.Expire(kStart + absl::Seconds(s)).empty());
  }
}

TEST_CASE("a new process takes the name over, and its ghost is told so for good", "[membership]") {
  Membership members = Fresh();
  REQUIRE(members.Admit(kOne, Process(7), kStart).ok());
  members.Find(kOne)->progress.set_samples(5);
  REQUIRE(members.Admit(kOne, Process(8), kStart).ok());
  CHECK(members.Find(kOne)->progress.samples() == 0);
  CHECK(absl::IsAlreadyExists(members.Hear(kOne, Incarnation(7), kStart)));
  CHECK(absl::IsAlreadyExists(members.Admit(kOne, Process(7), kStart)));
  CHECK(members.Hear(kOne, Incarnation(8), kStart).ok());
}

TEST_CASE("a name is held while its process is heard of, and who loses it learns who has it",
          "[membership]") {
  Membership members = Fresh();
  CHECK_FALSE(members.HeldByAnother(kOne, Incarnation(8), kStart));
  REQUIRE(members.Admit(kOne, Process(7), kStart).ok());
  CHECK(members.HeldByAnother(kOne, Incarnation(8), kStart + absl::Seconds(1)));
  CHECK_FALSE(members.HeldByAnother(kOne, Incarnation(7), kStart + absl::Seconds(1)));
  CHECK_FALSE(members.HeldByAnother(kOne, Incarnation(8), kStart + absl::Milliseconds(1001)));
  Membership::Member other = Process(8);
  other.peer = "10.0.0.2:4711";
  REQUIRE(members.Admit(kOne, other, kStart).ok());
  const absl::Status lost = members.Hear(kOne, Incarnation(7), kStart);
  CHECK(lost.message() == "another process has taken over the name w: the one at 10.0.0.2:4711");
  members.Remove(kOne);
  CHECK_FALSE(members.HeldByAnother(kOne, Incarnation(9), kStart));
}

TEST_CASE("of processes that wait for a member's name the first is told of at once, others once a minute",
          "[membership]") {
  Membership members = Fresh();
  REQUIRE(members.Admit(kOne, Process(7), kStart).ok());
  const auto note = [&](uint64_t rival, int second) {
    return members.NoteRival(kOne, Incarnation(rival), rival == 8 ? "10.0.0.8:4711" : "10.0.0.9:4711",
                             kStart + absl::Seconds(second));
  };
  CHECK(note(8, 0));
  // They ask in turn.
  for (int second = 1; second < 60; ++second) CHECK_FALSE(note(second % 2 == 0 ? 8 : 9, second));
  CHECK(members.Find(kOne)->rival_peer == "10.0.0.9:4711");
  CHECK_FALSE(note(8, 60));  // It is known.
  CHECK(note(9, 61));
  CHECK_FALSE(note(8, 62));
  CHECK(note(8, 121));
  // One that waits alone is not told of again.
  for (int minute = 3; minute < 10; ++minute) CHECK_FALSE(note(8, 60 * minute));
  // Whoever has got the name has no rival yet.
  REQUIRE(members.Admit(kOne, Process(9), kStart + absl::Seconds(600)).ok());
  CHECK(members.Find(kOne)->rival_peer.empty());
  CHECK(note(8, 600));
}

TEST_CASE("of those that are gone the last ones are shown, and room is made for newcomers", "[membership]") {
  Membership members = Fresh();
  REQUIRE(members.Admit(WorkerId(0), Process(1), kStart).ok());
  const uint32_t count = 2 * limits::kGoneMembersMax;
  for (uint32_t i = 1; i <= count; ++i) {
    REQUIRE(members.Admit(WorkerId(i), Process(1), kStart + absl::Seconds(i)).ok());
    members.Remove(WorkerId(i));
  }
  CHECK(members.members().size() == 1 + limits::kGoneMembersMax);
  CHECK(members.Find(WorkerId(0)) != nullptr);
  CHECK(members.Find(WorkerId(1)) == nullptr);
  CHECK(members.Find(WorkerId(count)) != nullptr);
  for (uint32_t i = 0; i + 1 < limits::kMembersMax; ++i) {
    REQUIRE(members.Admit(WorkerId(10'000 + i), Process(1), kStart).ok());
  }
  CHECK(members.members().size() == limits::kMembersMax);
  CHECK(absl::IsResourceExhausted(members.Admit(WorkerId(9'999), Process(1), kStart)));
  CHECK(members.Admit(WorkerId(0), Process(1), kStart).ok());
}

TEST_CASE("unknown workers and wrong incarnations are to register", "[membership]") {
  Membership members = Fresh();
  CHECK(absl::IsFailedPrecondition(members.Hear(kOne, Incarnation(7), kStart)));
  REQUIRE(members.Admit(kOne, Process(7), kStart).ok());
  CHECK(absl::IsFailedPrecondition(members.Hear(kOne, Incarnation(9), kStart)));
  CHECK(absl::IsFailedPrecondition(members.Hear(WorkerId(2), Incarnation(7), kStart)));
}

}  // namespace recon
