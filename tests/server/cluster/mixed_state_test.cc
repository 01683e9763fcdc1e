#include "server/cluster/mixed_state.h"

#include "catch2/catch.hpp"
#include "server/process/place_recovery.h"

namespace recon {
namespace {

PlaceState At(uint32_t server, bool lost, uint64_t generation, uint64_t sequence) {
  PlaceState place;
  place.server = server;
  place.lost = lost;
  place.generation = generation;
  place.sequence = sequence;
  return place;
}

}  // namespace

TEST_CASE("the snapshot to go back to is the oldest of those that have lost something", "[mixed_state]") {
  CHECK_FALSE(OldestOfLost({At(0, false, 7, 50), At(1, false, 7, 60)}));
  CHECK_FALSE(OldestOfLost({At(0, true, 0, 0), At(1, false, 0, 3)}));  // A job without a snapshot.
  CHECK(OldestOfLost({At(0, false, 3, 50), At(1, true, 7, 60), At(2, true, 5, 60)}) == 5);
}

TEST_CASE("a server is ahead by records of its own log, or by a newer snapshot", "[mixed_state]") {
  Manifest snapshot;
  snapshot.set_generation(7);
  for (const uint64_t sequence : {50, 60, 70}) snapshot.add_servers()->set_sequence(sequence);
  CHECK(AheadOf(snapshot, {At(0, true, 7, 50), At(1, false, 7, 60), At(2, false, 7, 70)}).empty());
  CHECK(AheadOf(snapshot, {At(0, true, 7, 50), At(1, false, 7, 61), At(2, false, 8, 70)}) ==
        std::vector<uint32_t>{1, 2});
}

TEST_CASE("a place that has lost something is known by its snapshot until the job goes back",
          "[mixed_state]") {
  CHECK(LostAt(0, {7, /*lost=*/true}) == 7);
  CHECK(LostAt(7, {8, /*lost=*/false}) == 7);
  CHECK(LostAt(7, {7, /*lost=*/false, /*went_back=*/true}) == 0);
}

}  // namespace recon
