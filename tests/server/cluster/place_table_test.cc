#include "server/cluster/place_table.h"

#include "catch2/catch.hpp"
#include "tests/server/cluster/fake_links.h"
#include "tests/server/cluster/small_cluster.h"

namespace recon {
namespace {

const absl::Time kStart = absl::UnixEpoch() + absl::Hours(1);

}  // namespace

TEST_CASE("a server gets the place that it had, and a new one the first that is free", "[place_table]") {
  PlaceTable table(kClusterServers, ServerTable());
  CHECK(table.servers() == kClusterServers);
  CHECK(table.PlaceFor(HelloOf(7)) == 1);
  table.Give(1, 7);
  CHECK(table.PlaceFor(HelloOf(8)) == 2);
  table.Give(2, 8);
  CHECK(table.PlaceFor(HelloOf(7)) == 1);
  CHECK(table.PlaceFor(HelloOf(9)) == 0);
}

TEST_CASE("a table that was saved gives each server its place again", "[place_table]") {
  const PlaceTable before(kClusterServers, ServerTable());
  ServerTable saved = before.Given(2, 8);
  const PlaceTable after(kClusterServers, saved);
  CHECK(after.PlaceFor(HelloOf(8)) == 2);
  CHECK(after.PlaceFor(HelloOf(7)) == 1);
}

TEST_CASE("a table that was lost is made again by those who come with what they have", "[place_table]") {
  PlaceTable table(kClusterServers, ServerTable());
  CHECK(table.PlaceFor(HelloWithData(8, 2)) == 2);
  table.Give(2, 8);
  // Another with that place's data: it would not be given what the first one has.
  CHECK(table.PlaceFor(HelloWithData(9, 2)) == 1);
  table.Give(1, 7);
  CHECK(table.PlaceFor(HelloWithData(9, 2)) == 0);
  CHECK(Resumes(HelloWithData(8, 2), 2, kClusterServers));
  CHECK_FALSE(Resumes(HelloWithData(8, 2), 1, kClusterServers));
  CHECK_FALSE(Resumes(HelloWithData(8, 2), 2, kClusterServers + 1));
  CHECK_FALSE(Resumes(HelloOf(8), 2, kClusterServers));
}

TEST_CASE("of the servers that wait, the first that is not silent is taken", "[place_table]") {
  PlaceTable table(kClusterServers, ServerTable());
  const auto first = std::make_shared<FakeServerLink>();
  const auto second = std::make_shared<FakeServerLink>();
  const auto third = std::make_shared<FakeServerLink>();
  table.AddSpare(first, HelloOf(1), kStart);
  table.AddSpare(second, HelloOf(2), kStart);
  table.AddSpare(third, HelloOf(3), kStart);
  table.HearOfSpare(second.get(), kStart + absl::Seconds(5));
  table.HearOfSpare(third.get(), kStart + absl::Seconds(5));
  const absl::Time now = kStart + absl::Seconds(6);
  const auto silent = table.SilentSpares(now, absl::Seconds(3));
  REQUIRE(silent.size() == 1);
  CHECK(silent[0] == first);
  const auto taken = table.TakeSpare(now, absl::Seconds(3));
  REQUIRE(taken);
  CHECK(taken->hello.server_id() == 2);
  CHECK_FALSE(table.IsSpare(second.get()));
  table.DropSpare(third.get());
  CHECK_FALSE(table.TakeSpare(now, absl::Seconds(3)));
  CHECK(table.IsSpare(first.get()));
}

}  // namespace recon
