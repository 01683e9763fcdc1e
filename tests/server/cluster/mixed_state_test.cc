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

TEST_CASE("a snapshot has one state of the workers, or is none", "[mixed_state]") {
  ModelSpec model;
  model.set_name("means");
  for (const char* const group : {"default", kStateGroup}) {
    TensorSpec* tensor = model.add_tensors();
    tensor->set_name(group);
    tensor->set_group(group);
    tensor->add_shape(3 * kShardParamsMax);
  }
  const ParamLayout layout = *ParamLayout::Create(model);
  REQUIRE(layout.shard_count() == 6);
  std::vector<Manifest> parts(3);
  for (uint32_t shard = 0; shard < 6; ++shard) {
    ShardEntry* entry = parts[shard % 3].add_shards();
    entry->set_shard(shard);
    entry->set_version(HoldsState(layout, shard) ? 8 : shard);
  }
  CHECK(CheckOneState(layout, parts).ok());
  for (ShardEntry& entry : *parts[1].mutable_shards()) {
    if (HoldsState(layout, entry.shard())) entry.set_version(9);
  }
  CHECK(absl::IsUnavailable(CheckOneState(layout, parts)));
}

}  // namespace recon
