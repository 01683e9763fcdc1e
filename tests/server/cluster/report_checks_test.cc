#include "server/cluster/report_checks.h"

#include <vector>

#include "absl/strings/match.h"
#include "catch2/catch.hpp"
#include "common/base/limits.h"
#include "tests/server/cluster/small_cluster.h"

namespace recon {
namespace {

const std::vector<uint32_t> kServers = {0, 1, 2, 0, 1, 2};

PushDelivered Delivered(const std::vector<uint32_t>& shards, uint32_t push_parts) {
  PushDelivered push;
  push.set_push_parts(push_parts);
  push.mutable_shards()->Add(shards.begin(), shards.end());
  return push;
}
ServerProgress Progress(uint64_t sequence, uint64_t frontier) {
  ServerProgress progress;
  progress.set_sequence(sequence);
  progress.set_frontier_step(frontier);
  return progress;
}

}  // namespace

TEST_CASE("a server is one of this job, and says where it is", "[report_checks]") {
  CHECK(CheckHello(HelloOf(1), kClusterJob).ok());
  CHECK(CheckHello(HelloWithData(1, 2), kClusterJob).ok());
  CHECK(absl::IsInvalidArgument(CheckHello(HelloOf(0), kClusterJob)));
  ServerHello nowhere = HelloOf(1);
  nowhere.clear_address();
  CHECK(absl::IsInvalidArgument(CheckHello(nowhere, kClusterJob)));
  CHECK(absl::IsFailedPrecondition(CheckHello(HelloWithData(1, 2), kClusterJob + 1)));
}

TEST_CASE("a server reports parts of its own shards", "[report_checks]") {
  CHECK(CheckDelivered(Delivered({1, 4}, 6), 1, kServers).ok());
  const absl::Status not_there = CheckDelivered(Delivered({1, 6}, 6), 1, kServers);
  CHECK(absl::IsInvalidArgument(not_there));
  CHECK(absl::StrContains(not_there.message(), "shard 6, the model has 6"));
  const absl::Status of_another = CheckDelivered(Delivered({2}, 6), 1, kServers);
  CHECK(absl::IsInvalidArgument(of_another));
  CHECK(absl::StrContains(of_another.message(), "shard 2, which server 2 has"));
  CHECK(absl::IsInvalidArgument(CheckDelivered(Delivered({1}, 0), 1, kServers)));
  CHECK(absl::IsInvalidArgument(CheckDelivered(Delivered({1}, 7), 1, kServers)));
  CHECK(absl::IsInvalidArgument(CheckDelivered(Delivered({1}, 6), 1, {})));  // It has no place yet.
}

TEST_CASE("a server's log only grows", "[report_checks]") {
  CHECK(CheckProgress(Progress(5, 2), Progress(5, 2)).ok());
  CHECK(CheckProgress(Progress(6, 3), Progress(5, 2)).ok());
  const absl::Status back = CheckProgress(Progress(4, 2), Progress(5, 2));
  CHECK(absl::IsInvalidArgument(back));
  CHECK(absl::StrContains(back.message(), "from 5 to 4"));
  CHECK(absl::IsInvalidArgument(CheckProgress(Progress(5, limits::kStepMax + 1), Progress(5, 2))));
}

TEST_CASE("no server comes to an epoch or a step that no job comes to", "[report_checks]") {
  ServerReady ready;
  ready.set_cluster_epoch(limits::kClusterEpochMax);
  ready.set_frontier_step(limits::kStepMax);
  CHECK(CheckReady(ready).ok());
  ready.set_cluster_epoch(limits::kClusterEpochMax + 1);
  CHECK(absl::IsInvalidArgument(CheckReady(ready)));
  ready.set_cluster_epoch(1);
  ready.set_frontier_step(limits::kStepMax + 1);
  CHECK(absl::IsInvalidArgument(CheckReady(ready)));
}

TEST_CASE("a server's part of a snapshot has its own shards", "[report_checks]") {
  SnapshotPart part;
  part.mutable_part()->add_shards()->set_shard(4);
  CHECK(CheckPart(part, 1, kServers).ok());
  part.mutable_part()->add_shards()->set_shard(5);
  CHECK(absl::IsInvalidArgument(CheckPart(part, 1, kServers)));
}

}  // namespace recon
