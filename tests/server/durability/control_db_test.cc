#include "server/durability/control_db.h"

#include <filesystem>

#include "absl/strings/match.h"
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
    CHECK_FALSE(db->FindWorker("a")->has_value());
    CHECK(db->AddWorker("a")->value() == 1);
    CHECK(db->AddWorker("b")->value() == 2);
    CHECK((*db->FindWorker("a"))->value() == 1);
  }
  const auto db = *ControlDb::Open(directory.path());
  CHECK((*db->FindWorker("b"))->value() == 2);
  CHECK(db->AddWorker("c")->value() == 3);
}

TEST_CASE("a lost database is filled from what was known elsewhere, and only with what it lacks",
          "[control_db]") {
  const TempDir directory;
  ControlState known;
  known.job.emplace().set_train_samples(60);
  known.workers = {{"a", 7}, {"b", 2}};
  for (const uint32_t split : {3, 4}) {
    const Completion completion = Split(LEASE_TRAIN, 1, split);
    known.completions[ControlState::KeyOf(completion)] = completion;
  }
  const auto db = *ControlDb::Open(directory.path());
  CHECK(db->created());
  Completion own = Split(LEASE_TRAIN, 1, 4);
  own.set_worker("its own");
  REQUIRE(db->SaveCompletion(own).ok());
  REQUIRE(db->Merge(known).ok());
  const ControlState merged = *db->Load();
  CHECK(merged.job->train_samples() == 60);
  CHECK(merged.workers == known.workers);
  REQUIRE(merged.completions.size() == 2);
  CHECK(merged.completions.at({LEASE_TRAIN, 1, 4}).worker() == "its own");
  CHECK(db->AddWorker("c")->value() == 8);
  known.workers["a"] = 9;
  const absl::Status contradiction = db->Merge(known);
  CHECK(absl::IsDataLoss(contradiction));
  CHECK(absl::StrContains(contradiction.message(), "worker a is number 7"));
}

TEST_CASE("a damaged database is refused when it is opened, not when it is used", "[control_db]") {
  const TempDir directory;
  {
    const auto db = *ControlDb::Open(directory.path());
    REQUIRE(db->NextClusterEpoch().ok());
    for (uint32_t split = 0; split < 500; ++split)
      REQUIRE(db->SaveCompletion(Split(LEASE_TRAIN, 1, split)).ok());
  }
  // Opening it again makes a table of its log.
  CHECK_FALSE((*ControlDb::Open(directory.path()))->created());
  int tables = 0;
  for (const auto& entry : std::filesystem::directory_iterator(directory.path())) {
    if (entry.path().extension() != ".sst") continue;
    ++tables;
    std::string bytes = ReadWholeFile(entry.path());
    bytes[bytes.size() / 4] = static_cast<char>(bytes[bytes.size() / 4] ^ 1);
    WriteWholeFile(entry.path(), bytes);
  }
  REQUIRE(tables > 0);
  CHECK(absl::IsDataLoss(ControlDb::Open(directory.path()).status()));
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
