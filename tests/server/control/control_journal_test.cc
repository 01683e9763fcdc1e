#include "server/control/control_journal.h"

#include "catch2/catch.hpp"
#include "server/recovery/log_replay.h"
#include "tests/server/data_plane/push_frames.h"
#include "tests/server/durability/sample_state.h"
#include "tests/support/faulty_file_system.h"
#include "tests/support/temp_dir.h"

namespace recon {
namespace {

Completion Split(uint32_t split) {
  Completion completion;
  completion.set_kind(LEASE_TRAIN);
  completion.set_split(split);
  completion.set_begin(split * uint64_t{10});
  completion.set_end(completion.begin() + 10);
  completion.set_worker("w");
  return completion;
}

struct Fixture {
  explicit Fixture(bool with_log) {
    harness.Define(SampleModel(20), std::vector<float>(20 * 20 + 30, 0.0f));
    harness.Join(1);
    harness.server().log()->NoteSnapshot(1);
    if (with_log) OpenLog();
    journal.emplace(db.get(), &harness.server());
  }
  void OpenLog() {
    PushLog::Options options;
    options.directory = "/log";
    const ApplyRules rules = ParamServerHarness::MakeOptions(-1, OptimizerKind::kSgd, 1, 2).rules;
    harness.server().log()->Set(
        *PushLog::Open(options, &files, rules, harness.server().position().sequence + 1));
  }
  void Push() {
    const auto pending = harness.Push(1, step++, 1);
    pending->done.WaitForNotification();
    INFO(pending->reply.status());
    REQUIRE(pending->reply.ok());
  }
  uint64_t CutSequence() {
    Notification done;
    uint64_t sequence = 0;
    harness.server().Cut([&](const StateCut& cut) {
      sequence = cut.sequence;
      done.Notify();
    });
    done.WaitForNotification();
    return sequence;
  }

  TempDir directory;
  FaultyFileSystem files;
  std::unique_ptr<ControlDb> db = *ControlDb::Open(directory.path());
  ParamServerHarness harness{-1};
  uint64_t step = 0;
  std::optional<ControlJournal> journal;
};

}  // namespace

TEST_CASE("a snapshot says of no split that it is completed whose pushes came after the cut",
          "[control_journal]") {
  for (const bool with_log : {true, false}) {
    INFO("log " << with_log);
    Fixture f(with_log);
    f.Push();
    REQUIRE(f.journal->SaveCompletion(Split(0)).ok());
    const uint64_t first = f.CutSequence();
    f.Push();
    REQUIRE(f.journal->SaveCompletion(Split(1)).ok());
    CHECK(f.journal->StateAt(first)->completions.size() == 1);
    const uint64_t second = f.CutSequence();
    CHECK(second > first);
    CHECK(f.journal->StateAt(second)->completions.size() == 2);
    CHECK(absl::IsAlreadyExists(f.journal->SaveCompletion(Split(1))));
    CHECK(f.journal->StateAt(second)->completions.size() == 2);
  }
}

TEST_CASE("the log alone tells workers' numbers and completed splits, and gets what it lacks",
          "[control_journal]") {
  Fixture f(/*with_log=*/false);
  // Before there is a log, as with another --durability.
  REQUIRE(f.journal->WorkerIdFor("early")->value() == 1);
  REQUIRE(f.journal->SaveCompletion(Split(0)).ok());
  REQUIRE(f.journal->SaveCompletion(Split(1)).ok());
  f.OpenLog();
  ControlState recovered;
  recovered.completions[ControlState::KeyOf(Split(0))] = Split(0);
  REQUIRE(f.journal->Start(recovered).ok());
  const uint64_t before = f.harness.server().position().sequence;
  CHECK(f.journal->WorkerIdFor("late")->value() == 2);
  CHECK(f.journal->WorkerIdFor("late")->value() == 2);
  f.Push();
  REQUIRE(f.journal->SaveCompletion(Split(2)).ok());
  CHECK(f.harness.server().position().sequence == before + 3);
  PolicyRecord policy;
  for (const char* sync : {"bsp", "ssp:2"}) {
    policy.mutable_set()->set_sync(sync);
    REQUIRE(f.journal->SavePolicy(policy).ok());
  }
  CHECK(f.journal->StateAt(f.harness.server().position().sequence)->policy.set().sync() == "ssp:2");

  ParamServerHarness again{-1};
  again.Define(SampleModel(20), std::vector<float>(20 * 20 + 30, 0.0f));
  ControlState state;
  Manifest manifest;
  manifest.set_log_from(f.harness.server().position().sequence - 6);
  const auto end = ReplayLog(&f.files, "/log", manifest, &again.server(), &state);
  INFO(end.status());
  REQUIRE(end.ok());
  CHECK(end->records == 7);
  CHECK(state.policy.set().sync() == "ssp:2");
  CHECK(state.workers == std::map<std::string, uint32_t>{{"early", 1}, {"late", 2}});
  CHECK(state.completions.size() == 2);  // Those that the snapshot did not have.
}

}  // namespace recon
