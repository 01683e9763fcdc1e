#include "common/web/web_guests.h"

#include "catch2/catch.hpp"

namespace recon {
namespace {

constexpr uint64_t kHere = 1, kThere = 2;

absl::Time At(int seconds) { return absl::UnixEpoch() + absl::Seconds(seconds); }

WebGuests Four() { return WebGuests({4, absl::Seconds(5), absl::Seconds(30)}); }

using Ids = std::vector<uint64_t>;

}  // namespace

TEST_CASE("who comes is let in, and the one that has asked for the longest time goes", "[web]") {
  WebGuests guests = Four();
  for (int i = 0; i < 4; ++i) CHECK(guests.Came(i, kHere, At(i)) == std::nullopt);
  guests.Asked(0, At(4));
  guests.Answered(0, At(4));
  CHECK(guests.Came(4, kHere, At(5)) == 1);
  CHECK(guests.size() == 4);
  // It counts no more, though its end has not come.
  CHECK(guests.Came(5, kHere, At(5)) == 2);
  guests.Left(1);
  guests.Left(2);
  CHECK(guests.Came(6, kHere, At(5)) == 3);
}

TEST_CASE("one who takes its answer slowly goes as one who asks slowly does", "[web]") {
  WebGuests guests = Four();
  for (int i = 0; i < 4; ++i) {
    guests.Came(i, kHere, At(i));
    guests.Asked(i, At(i));
  }
  CHECK(guests.Came(4, kHere, At(9)) == 0);
  CHECK(guests.Came(5, kHere, At(9)) == 1);
}

TEST_CASE("an address that has most connections makes room, whoever was there first", "[web]") {
  WebGuests guests = Four();
  guests.Came(0, kHere, At(0));
  for (int i = 1; i < 4; ++i) guests.Came(i, kThere, At(i));
  CHECK(guests.Came(4, kThere, At(4)) == 1);
  CHECK(guests.Came(5, kThere, At(4)) == 2);
  CHECK(guests.Came(6, kHere, At(4)) == 3);
}

TEST_CASE("one has so long to ask, and so long to take its answer", "[web]") {
  WebGuests guests = Four();
  CHECK(guests.NextOverdue() == absl::InfiniteFuture());
  guests.Came(0, kHere, At(0));
  guests.Came(1, kHere, At(1));
  guests.Asked(1, At(2));
  CHECK(guests.NextOverdue() == At(5));
  CHECK(guests.TakeOverdue(At(4)).empty());
  CHECK(guests.TakeOverdue(At(5)) == Ids{0});
  CHECK(guests.TakeOverdue(At(31)).empty());
  CHECK(guests.NextOverdue() == At(32));
  guests.Answered(1, At(31));
  CHECK(guests.TakeOverdue(At(35)).empty());
  CHECK(guests.TakeOverdue(At(36)) == Ids{1});
  guests.Asked(7, At(37));
  CHECK(guests.size() == 0);
}

}  // namespace recon
