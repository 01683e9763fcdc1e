// A way back from what ruins a model: one push, or a job that diverges.

#include <string>
#include <thread>
#include <vector>

#include "catch2/catch.hpp"
#include "common/snapshot/manifest.h"
#include "tests/integration/job_checks.h"
#include "tests/integration/rollback_job.h"
#include "tests/support/process.h"

namespace recon {

TEST_CASE("one push of 3e38 ruins a model, and is undone: the log without it makes the state", "[rollback]") {
  for (const int bound : {-1, 0}) {
    CAPTURE(bound);
    InProcessJob job(bound, 4);
    Prepare(&job)->StartServer();
    std::vector<absl::Status> statuses;
    std::thread training([&] { statuses = job.RunWorkers(FourWorkers(job)); });
    REQUIRE(SamplesReach(job, 2 * kSamples));
    const LoggedPush bad = PushByHand(job, "bad", 3e38f);
    // Under a supervisor they would come again, and end again.
    training.join();
    for (const absl::Status& status : statuses) CHECK(absl::IsOutOfRange(status));
    CHECK(Eventually([&] { return !job.Control().Status()->divergence().empty(); }));
    const StatusReply ruined = *job.Control().Status();
    RollbackRequest request;
    request.add_undo()->set_worker("bad");
    request.mutable_undo(0)->set_step(std::get<2>(bad));
    const RollbackRecord done = RollBackJob(job, request);
    const Manifest begun = ManifestOf(job, done.published());
    CHECK(ToHex(begun.state_root()) == ReferenceRoot(job, 1, done.end(), {bad}));
    CHECK(begun.non_finite_values() == 0);
    CHECK(job.Control().Status()->samples_completed() == ruined.samples_completed());
    CheckAllOk(job.RunWorkers(FourWorkers(job)));
    CHECK(CompletedOnce(*job.Control().Completions(), kEpochs, kSamples));
    CHECK(job.Control().Status()->evaluations(kEpochs - 1).accuracy() > 0.9);
  }
}

TEST_CASE("a job that diverges goes back by itself, and its workers go on", "[rollback]") {
  for (const int bound : {-1, 0}) {
    CAPTURE(bound);
    InProcessJob job(bound, 4);
    Prepare(&job);
    job.flags.on_divergence = ServerFlags::OnDivergence::kRollback;
    job.StartServer();
    std::vector<absl::Status> statuses;
    std::thread training([&] { statuses = job.RunWorkers(FourWorkers(job)); });
    REQUIRE(SamplesReach(job, 2 * kSamples));
    const uint64_t good = job.Control().Snapshot()->generation();
    REQUIRE(SamplesReach(job, 3 * kSamples));
    PushByHand(job, "bad", 3e38f);
    RollbackRecord done;
    REQUIRE(Eventually([&] {
      const auto status = job.Control().Status();
      if (status.ok()) done = status->rollback();
      return status.ok() && done.automatic_count() == 1;
    }));
    CHECK(done.generation() == good);
    CHECK(done.automatic());
    CHECK(ManifestOf(job, done.published()).state_root() == ManifestOf(job, good).state_root());
    training.join();
    CheckAllOk(statuses);
    CHECK(CompletedOnce(*job.Control().Completions(), kEpochs, kSamples));
    const StatusReply status = *job.Control().Status();
    CHECK(status.evaluations(kEpochs - 1).accuracy() > 0.9);
    CHECK(status.rollback().automatic_count() == 1);
    CHECK(status.divergence().empty());
  }
}

TEST_CASE("workers that keep something back, or train parameters of their own, go back with the job",
          "[rollback]") {
  const auto policies = {std::string("topk"), std::string("accumulate"), std::string("local")};
  for (const std::string& kind : policies) {
    CAPTURE(kind);
    InProcessJob job(-1, 4);
    Prepare(&job);
    if (kind == "local") job.MakeLocal(2, 0.25);
    job.StartServer();
    std::vector<WorkerFlags> workers = FourWorkers(job);
    for (WorkerFlags& worker : workers) {
      if (kind == "topk") worker.codec.rules = *CodecRules::Parse("topk:0.05");
      if (kind == "accumulate") worker.accumulate = 2;
    }
    std::vector<absl::Status> statuses;
    std::thread training([&] { statuses = job.RunWorkers(workers); });
    REQUIRE(SamplesReach(job, 2 * kSamples));
    RollbackRequest request;
    request.set_generation(1);
    const RollbackRecord done = RollBackJob(job, request);
    CHECK(ManifestOf(job, done.published()).state_root() == ManifestOf(job, 1).state_root());
    training.join();
    CheckAllOk(statuses);
    CHECK(CompletedOnce(*job.Control().Completions(), kEpochs, kSamples));
    CHECK(job.Control().Status()->evaluations(kEpochs - 1).accuracy() > 0.8);
  }
}

}  // namespace recon
