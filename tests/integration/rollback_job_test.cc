// A way back: whole jobs that are rolled back while they run.

#include <functional>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/match.h"
#include "catch2/catch.hpp"
#include "common/snapshot/manifest.h"
#include "server/durability/control_db.h"
#include "tests/integration/job_checks.h"
#include "tests/integration/rollback_job.h"

namespace recon {

TEST_CASE("back to a snapshot under load: its state bit for bit, and every sample once", "[rollback]") {
  for (const int bound : {-1, 0, 2}) {
    CAPTURE(bound);
    InProcessJob job(bound, 4);
    Prepare(&job)->StartServer();
    std::vector<absl::Status> statuses;
    std::thread training([&] { statuses = job.RunWorkers(FourWorkers(job)); });
    REQUIRE(SamplesReach(job, 2 * kSamples));
    const SnapshotReply good = *job.Control().Snapshot();
    REQUIRE(SamplesReach(job, 4 * kSamples));
    const uint64_t generation_before = job.Control().Snapshot()->generation();

    RollbackRequest request;
    request.set_generation(good.generation());
    request.set_dry_run(true);
    const RollbackReply planned = *job.Control().Rollback(request);
    CHECK(planned.samples_again() > kSamples);
    CHECK(planned.oldest_generation() == 1);
    CHECK_FALSE(job.Control().Status()->has_rollback());
    request.set_dry_run(false);
    const RollbackRecord done = RollBackJob(job, request);

    const Manifest restored = ManifestOf(job, good.generation());
    const Manifest begun = ManifestOf(job, done.published());
    CHECK(begun.reason() == "rollback");
    CHECK(begun.state_root() == restored.state_root());
    CHECK(ControlOf(begun) == ControlOf(restored));
    CHECK(begun.history() == 1);
    CHECK(begun.generation() > generation_before);
    CHECK(begun.sequence() == done.end());
    CHECK(begun.sequence() > restored.sequence());
    training.join();
    CheckAllOk(statuses);
    CHECK(CompletedOnce(*job.Control().Completions(), kEpochs, kSamples));
    const StatusReply status = *job.Control().Status();
    CHECK(status.evaluations(kEpochs - 1).accuracy() > 0.9);
    CHECK(status.rollback().history() == 1);
  }
}

TEST_CASE("a synchronous worker that goes back to the beginning ends where one does that never went wrong",
          "[rollback]") {
  // One: which steps two workers share hangs on when each of them is back.
  InProcessJob reference(0, 1);
  reference.flags.job.set_data_epochs(4);
  reference.StartServer();
  CheckAllOk(reference.RunWorkers({reference.MakeWorker("a")}));

  InProcessJob job(0, 1);
  Prepare(&job);
  job.flags.job.set_data_epochs(4);
  job.StartServer();
  std::vector<absl::Status> statuses;
  std::vector<WorkerFlags> workers = {job.MakeWorker("a")};
  workers[0].step_time = absl::Milliseconds(2);
  std::thread training([&] { statuses = job.RunWorkers(workers); });
  REQUIRE(SamplesReach(job, kSamples));
  PushByHand(job, "bad", 3);
  REQUIRE(SamplesReach(job, kSamples + kSamples / 2));
  RollbackRequest request;
  request.set_generation(1);
  const RollbackRecord done = RollBackJob(job, request);
  training.join();
  CheckAllOk(statuses);
  CHECK(CompletedOnce(*job.Control().Completions(), 4, kSamples));
  CHECK(ManifestOf(job, done.published()).state_root() == ManifestOf(job, 1).state_root());
  CHECK(FinalParameters(&job) == FinalParameters(&reference));
}

TEST_CASE("back to a sequence: the state after that record, and what came later comes again", "[rollback]") {
  for (const int bound : {-1, 0}) {
    for (const bool keep : {false, true}) {
      CAPTURE(bound, keep);
      InProcessJob job(bound, 4);
      Prepare(&job)->StartServer();
      std::vector<absl::Status> statuses;
      std::thread training([&] { statuses = job.RunWorkers(FourWorkers(job)); });
      REQUIRE(SamplesReach(job, 2 * kSamples));
      const SnapshotReply middle = *job.Control().Snapshot();
      REQUIRE(SamplesReach(job, 3 * kSamples));
      const uint64_t now = job.Control().Snapshot()->generation();
      const uint64_t sequence =
          (ManifestOf(job, middle.generation()).sequence() + ManifestOf(job, now).sequence()) / 2;
      RollbackRequest request;
      request.set_sequence(sequence);
      request.set_keep_completions(keep);
      const uint64_t completed = job.Control().Status()->samples_completed();
      const RollbackRecord done = RollBackJob(job, request);
      CHECK(done.generation() == middle.generation());
      const Manifest begun = ManifestOf(job, done.published());
      CHECK(ToHex(begun.state_root()) == ReferenceRoot(job, middle.generation(), sequence));
      CHECK(ToHex(begun.state_root()) == ReferenceRoot(job, 1, sequence));
      uint64_t samples = 0;
      for (const CompletedPass& pass : begun.control().passes()) {
        for (const uint64_t count : pass.samples()) samples += pass.kind() == LEASE_TRAIN ? count : 0;
      }
      CHECK((samples >= completed) == keep);
      training.join();
      CheckAllOk(statuses);
      CHECK(CompletedOnce(*job.Control().Completions(), kEpochs, kSamples));
    }
  }
}

TEST_CASE("a push is undone under load: the state is that of a log which never had it", "[rollback]") {
  for (const int bound : {-1, 0, 2}) {
    CAPTURE(bound);
    InProcessJob job(bound, 4);
    Prepare(&job)->StartServer();
    std::vector<absl::Status> statuses;
    std::thread training([&] { statuses = job.RunWorkers(FourWorkers(job)); });
    REQUIRE(SamplesReach(job, kSamples));
    const uint64_t before = job.Control().Snapshot()->generation();
    const LoggedPush bad = PushByHand(job, "bad", 3);
    const uint64_t completed = job.Control().Status()->samples_completed();
    REQUIRE(SamplesReach(job, completed + kSamples));
    job.Control().Snapshot().IgnoreError();  // Has the push: undo has to go back beyond it.

    RollbackRequest request;
    PushName* push = request.add_undo();
    push->set_worker("bad");
    push->set_step(std::get<2>(bad));
    const RollbackRecord done = RollBackJob(job, request);
    CHECK(done.generation() == before);
    const Manifest begun = ManifestOf(job, done.published());
    CHECK(ToHex(begun.state_root()) == ReferenceRoot(job, 1, done.end(), {bad}));
    CHECK(ToHex(begun.state_root()) != ReferenceRoot(job, 1, done.end()));
    CHECK(begun.non_finite_values() == 0);
    CHECK(job.Control().Status()->samples_completed() >= completed + kSamples);
    training.join();
    CheckAllOk(statuses);
    CHECK(CompletedOnce(*job.Control().Completions(), kEpochs, kSamples));
    CHECK(job.Control().Status()->evaluations(kEpochs - 1).accuracy() > 0.9);
  }
}

TEST_CASE("what cannot be gone back to is refused with how far back it can be, and nothing changes",
          "[rollback]") {
  InProcessJob job(-1, 1);
  Prepare(&job)->StartServer();
  RollbackRequest request;
  request.set_generation(1);
  CHECK(absl::IsNotFound(job.Control().Rollback(request).status()));  // Nothing is there yet.
  std::vector<absl::Status> statuses;
  std::thread training([&] { statuses = job.RunWorkers(FourWorkers(job)); });
  REQUIRE(SamplesReach(job, kSamples));
  const auto refused = [&](absl::StatusCode code, const std::string& why,
                           const std::function<void(RollbackRequest*)>& change) {
    RollbackRequest wrong;
    change(&wrong);
    const absl::Status status = job.Control().Rollback(wrong).status();
    INFO(status);
    CHECK(status.code() == code);
    CHECK(absl::StrContains(status.message(), why));
  };
  const auto not_found = absl::StatusCode::kNotFound;
  refused(absl::StatusCode::kInvalidArgument, "0 of the three", [](RollbackRequest*) {});
  refused(absl::StatusCode::kInvalidArgument, "2 of the three", [](RollbackRequest* r) {
    r->set_generation(1);
    r->set_sequence(1);
  });
  refused(not_found, "there is no snapshot 77 that can be read, but 1",
          [](RollbackRequest* r) { r->set_generation(77); });
  refused(not_found, "there is no record 1000000000 yet",
          [](RollbackRequest* r) { r->set_sequence(1'000'000'000); });
  refused(not_found, "no worker of this job is called 'nobody'",
          [](RollbackRequest* r) { r->add_undo()->set_worker("nobody"); });
  refused(not_found, "push a:123456 is not in the push log", [](RollbackRequest* r) {
    r->add_undo()->set_worker("a");
    r->mutable_undo(0)->set_step(123456);
  });
  CHECK(job.Control().Status()->cluster_epoch() == 1);
  // Nothing leads to a record before an earlier rollback from a snapshot after it.
  const uint64_t second = job.Control().Snapshot()->generation();
  REQUIRE(SamplesReach(job, 2 * kSamples));
  request.set_generation(second);
  const RollbackRecord done = RollBackJob(job, request);
  // Before there are any records of the new history, perhaps, and then.
  for (const uint64_t records : {0, 1}) {
    REQUIRE(SamplesReach(job, records * (job.Control().Status()->samples_completed() + 100)));
    refused(absl::StatusCode::kFailedPrecondition, "lies before the last rollback", [&](RollbackRequest* r) {
      r->add_undo()->set_worker("a");
      r->mutable_undo(0)->set_step(0);
    });
  }
  // But a snapshot of then is one still, and so is a record that it leads to.
  request.Clear();
  request.set_sequence(ManifestOf(job, second).sequence() + 5);
  const RollbackRecord again = RollBackJob(job, request);
  CHECK(again.generation() == second);
  CHECK(again.history() == done.history() + 1);
  CHECK(ToHex(ManifestOf(job, again.published()).state_root()) == ReferenceRoot(job, 1, request.sequence()));
  training.join();
  CheckAllOk(statuses);
  CHECK(CompletedOnce(*job.Control().Completions(), kEpochs, kSamples));
}

TEST_CASE(
    "a server that is restarted after a rollback goes on from it, from the log and from a damaged "
    "snapshot, too",
    "[rollback]") {
  InProcessJob job(-1, 2);
  Prepare(&job)->StartServer();
  std::vector<WorkerFlags> workers = {job.MakeWorker("a"), job.MakeWorker("b")};
  for (WorkerFlags& worker : workers) worker.step_time = absl::Milliseconds(1);
  std::vector<absl::Status> statuses;
  std::thread training([&] { statuses = job.RunWorkers(workers); });
  REQUIRE(SamplesReach(job, kSamples));
  const uint64_t good = job.Control().Snapshot()->generation();
  REQUIRE(SamplesReach(job, 3 * kSamples));
  RollbackRequest request;
  request.set_generation(good);
  const RollbackRecord done = RollBackJob(job, request);
  REQUIRE(SamplesReach(job, 2 * kSamples));
  job.stop = true;
  training.join();
  CheckAllOk(statuses);
  const uint64_t completed = job.Control().Status()->samples_completed();
  const uint64_t last = job.Control().Status()->rollback().end();
  CHECK(last == done.end());
  job.StopServer();  // Drains: takes a snapshot.
  const auto store = *LocalStore::Open(job.flags.snapshots.directory, /*writer=*/false);
  const std::vector<Generation> left = *SnapshotReader(store.get()).List();
  const uint64_t drained = left.back().value();
  REQUIRE(drained == done.published() + 1);
  const std::string root = ManifestOf(job, drained).state_root();
  // As if it had been killed: snapshot and log lead to the same state. Then the rollback's own goes, too.
  for (const uint64_t damaged : {drained, done.published()}) {
    CAPTURE(damaged);
    const std::string path =
        absl::StrCat(job.flags.snapshots.directory, "/", ManifestName(Generation(damaged)));
    std::string bytes = ReadWholeFile(path);
    bytes[bytes.size() / 2] ^= 1;
    WriteWholeFile(path, bytes);
    job.StartServer();
    const SnapshotReply taken = *job.Control().Snapshot();
    CHECK(ManifestOf(job, taken.generation()).state_root() == root);
    CHECK(ManifestOf(job, taken.generation()).history() == 1);
    CHECK(job.Control().Status()->samples_completed() == completed);
    job.StopServer();
    const std::vector<Generation> generations = *SnapshotReader(store.get()).List();
    for (const Generation generation : generations) {
      if (generation.value() <= done.published()) continue;
      unlink(absl::StrCat(job.flags.snapshots.directory, "/", ManifestName(generation)).c_str());
    }
  }
}

TEST_CASE("without a push log a job goes back to snapshots, and to nothing else", "[rollback]") {
  InProcessJob job(-1, 4);
  Prepare(&job);
  job.flags.log.durability = ServerFlags::Durability::kSnapshot;
  job.StartServer();
  std::vector<absl::Status> statuses;
  std::thread training([&] { statuses = job.RunWorkers(FourWorkers(job)); });
  REQUIRE(SamplesReach(job, kSamples));
  const uint64_t good = job.Control().Snapshot()->generation();
  REQUIRE(SamplesReach(job, 2 * kSamples));
  RollbackRequest request;
  request.set_sequence(ManifestOf(job, good).sequence() + 1);
  CHECK(absl::IsNotFound(job.Control().Rollback(request).status()));
  request.Clear();
  request.set_generation(good);
  const RollbackRecord done = RollBackJob(job, request);
  CHECK(ManifestOf(job, done.published()).state_root() == ManifestOf(job, good).state_root());
  training.join();
  CheckAllOk(statuses);
  CHECK(CompletedOnce(*job.Control().Completions(), kEpochs, kSamples));
}

TEST_CASE("a rollback whose snapshot turns out to be damaged is given up, and the job goes on",
          "[rollback]") {
  InProcessJob job(-1, 1);
  Prepare(&job)->StartServer();
  std::vector<absl::Status> statuses;
  std::vector<WorkerFlags> workers = {job.MakeWorker("a")};
  workers[0].step_time = absl::Milliseconds(1);
  std::thread training([&] { statuses = job.RunWorkers(workers); });
  REQUIRE(SamplesReach(job, kSamples));
  const uint64_t good = job.Control().Snapshot()->generation();
  REQUIRE(SamplesReach(job, 2 * kSamples));
  job.stop = true;
  training.join();
  CheckAllOk(statuses);
  job.StopServer();
  // As if it had been asked for, and the snapshot had been damaged since.
  const std::string pack =
      absl::StrCat(job.flags.snapshots.directory, "/", ManifestOf(job, good).packs(0).name());
  {
    const auto db = *ControlDb::Open(job.flags.data + "/control");
    RollbackRecord record;
    record.set_history(1);
    record.set_generation(good);
    record.set_reason("to a damaged snapshot");
    REQUIRE(db->rollbacks().SaveNext(record).ok());
  }
  std::string bytes = ReadWholeFile(pack);
  bytes[bytes.size() / 2] ^= 1;
  WriteWholeFile(pack, bytes);
  job.StartServer();
  const StatusReply status = *job.Control().Status();
  CHECK_FALSE(status.has_rollback());
  CHECK(status.samples_completed() >= 2 * kSamples);
  CHECK(status.restored_generation() > good);
  job.stop = false;
  CheckAllOk(job.RunWorkers(workers));
  CHECK(CompletedOnce(*job.Control().Completions(), kEpochs, kSamples));
}

}  // namespace recon
