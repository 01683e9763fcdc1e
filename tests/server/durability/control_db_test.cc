#include "server/durability/control_db.h"

#include "catch2/catch.hpp"
#include "tests/support/temp_dir.h"

namespace recon {
namespace {

Completion Split(LeaseKind kind, uint32_t epoch, uint32_t split) {
  Completion completion;
  completion.set_kind(kind);
  completion.set_data_epoch(epoch);
  completion.set_split(split);
  completion.set_worker("w");
  return completion;
}

}  // namespace

TEST_CASE("the cluster epoch rises with every start", "[control_db]") {
  const TempDir directory;
  for (uint64_t epoch = 1; epoch <= 3; ++epoch)
    CHECK(*(*ControlDb::Open(directory.path()))->NextClusterEpoch() == epoch);
}

TEST_CASE("a worker's number stays with its name", "[control_db]") {
  const TempDir directory;
  {
    const auto db = *ControlDb::Open(directory.path());
    CHECK(db->WorkerIdFor("a")->value() == 1);
    CHECK(db->WorkerIdFor("b")->value() == 2);
    CHECK(db->WorkerIdFor("a")->value() == 1);
  }
  const auto db = *ControlDb::Open(directory.path());
  CHECK(db->WorkerIdFor("b")->value() == 2);
  CHECK(db->WorkerIdFor("c")->value() == 3);
}

TEST_CASE("job and completions are there after a restart, training before evaluations, in order",
          "[control_db]") {
  const TempDir directory;
  {
    const auto db = *ControlDb::Open(directory.path());
    CHECK_FALSE(db->LoadJob()->has_value());
    JobRecord job;
    job.set_train_samples(60);
    REQUIRE(db->SaveJob(job).ok());
    REQUIRE(db->SaveCompletion(Split(LEASE_EVAL, 1, 0)).ok());
    REQUIRE(db->SaveCompletion(Split(LEASE_TRAIN, 11, 300)).ok());
    REQUIRE(db->SaveCompletion(Split(LEASE_TRAIN, 2, 5)).ok());
    CHECK(absl::IsAlreadyExists(db->SaveCompletion(Split(LEASE_TRAIN, 2, 5))));
  }
  const auto db = *ControlDb::Open(directory.path());
  CHECK((*db->LoadJob())->train_samples() == 60);
  const auto completions = *db->LoadCompletions();
  REQUIRE(completions.size() == 3);
  CHECK(completions[0].data_epoch() == 2);
  CHECK(completions[1].data_epoch() == 11);
  CHECK(completions[2].kind() == LEASE_EVAL);
}

TEST_CASE("a database that is open elsewhere is an error", "[control_db]") {
  const TempDir directory;
  const auto db = *ControlDb::Open(directory.path());
  CHECK_FALSE(ControlDb::Open(directory.path()).ok());
}

}  // namespace recon
