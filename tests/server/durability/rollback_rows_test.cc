#include "server/durability/rollback_rows.h"

#include "catch2/catch.hpp"
#include "server/durability/control_db.h"
#include "tests/support/temp_dir.h"

namespace recon {
namespace {

Completion Split(uint32_t split, const std::string& worker) {
  Completion completion;
  completion.set_kind(LEASE_TRAIN);
  completion.set_split(split);
  completion.set_worker(worker);
  return completion;
}

RollbackRecord To(uint64_t generation) {
  RollbackRecord record;
  record.set_history(1);
  record.set_generation(generation);
  return record;
}

}  // namespace

TEST_CASE("a rollback that is to be done is there after a restart, until it is dropped", "[control_db]") {
  const TempDir directory;
  {
    const auto db = *ControlDb::Open(directory.path());
    CHECK(db->rollbacks().LoadNext()->history() == 0);
    REQUIRE(db->rollbacks().SaveNext(To(7)).ok());
  }
  {
    const auto db = *ControlDb::Open(directory.path());
    CHECK(db->rollbacks().LoadNext()->generation() == 7);
    REQUIRE(db->rollbacks().DropNext().ok());
  }
  const auto db = *ControlDb::Open(directory.path());
  CHECK(db->rollbacks().LoadNext()->history() == 0);
  CHECK(db->rollbacks().LoadLast()->history() == 0);
}

TEST_CASE("a rollback that is done leaves the completions of the state it went to, as they were then",
          "[control_db]") {
  const TempDir directory;
  ControlState state;
  {
    const auto db = *ControlDb::Open(directory.path());
    REQUIRE(db->SaveCompletion(Split(0, "stays")).ok());
    REQUIRE(db->SaveCompletion(Split(1, "did it again")).ok());
    REQUIRE(db->SaveCompletion(Split(2, "goes")).ok());
    REQUIRE(db->rollbacks().SaveNext(To(7)).ok());
    for (const Completion& completion : {Split(0, "stays"), Split(1, "did it first"), Split(9, "was lost")}) {
      state.completions[ControlState::KeyOf(completion)] = completion;
    }
    REQUIRE(db->rollbacks().Finish(To(7), state).ok());
  }
  const auto db = *ControlDb::Open(directory.path());
  CHECK(db->rollbacks().LoadNext()->history() == 0);
  CHECK(db->rollbacks().LoadLast()->generation() == 7);
  const std::vector<Completion> left = *db->LoadCompletions();
  REQUIRE(left.size() == 3);
  CHECK(left[0].worker() == "stays");
  CHECK(left[1].worker() == "did it first");
  CHECK(left[2].split() == 9);
}

}  // namespace recon
