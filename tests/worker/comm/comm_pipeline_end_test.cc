// Pushes that come to an end with the session or the pipeline.

#include <memory>
#include <thread>
#include <utility>
#include <vector>

#include "catch2/catch.hpp"
#include "tests/worker/comm/small_worker.h"
#include "worker/comm/comm_pipeline.h"

namespace recon {
namespace {

using Fate = FakeTransport::Fate;
using Ends = std::vector<std::pair<int, bool>>;

// Rounds of local steps: a server may take ten minutes for an answer.
SmallWorker::Setup Rounds(uint32_t servers = 1) {
  SmallWorker::Setup setup;
  setup.servers = servers;
  LocalTraining* local = setup.job.mutable_job()->mutable_local();
  local->set_steps(4);
  local->set_fragments(1);
  return setup;
}

}  // namespace

TEST_CASE("a session that fails ends the pushes that wait for their servers, and what waits for those",
          "[pipeline]") {
  SmallPipeline job(Rounds(2), /*depth=*/2);
  for (const auto& server : job.servers) server->DecideAll(Fate::kHold);
  for (int i = 0; i < 4; ++i) job.Submit(1, i);
  for (const auto& server : job.servers) server->AwaitHeld(2);
  std::thread waits([&] { job.pipeline->WaitUntilBelow(1); });
  job.session->Fail(absl::DataLossError("of the test"));
  const bool ended = job.outcomes.AwaitCount(4);
  job.End();  // They would hold up the test for ten minutes.
  waits.join();
  REQUIRE(ended);
  CHECK(job.outcomes.Sorted() == Ends{{0, false}, {1, false}, {2, false}, {3, false}});
  CHECK(job.sums.taken() == 0);
}

TEST_CASE("a session that gives up registering ends the pushes that wait for their servers", "[pipeline]") {
  SmallPipeline job(Rounds());
  job.servers[0]->DecideAll(Fate::kHold);
  job.Submit(1, 0);
  job.servers[0]->AwaitHeld(1);
  job.RegisterAgain(SmallJob());
  job.head->registrations.Otherwise(absl::PermissionDeniedError("not with this secret"));
  const bool ended = job.outcomes.AwaitCount(1);
  job.End();
  REQUIRE(ended);
  CHECK(job.outcomes.Sorted() == Ends{{0, false}});
  CHECK(absl::IsPermissionDenied(job.session->fatal()));
}

TEST_CASE("what is sent after the session has failed is not waited for", "[pipeline]") {
  SmallPipeline job(Rounds());
  // The connections are cut before the request is on one of them.
  job.servers[0]->Decide([&](const Frame&) {
    job.session->Fail(absl::DataLossError("of the test"));
    return Fate::kHold;
  });
  job.Submit(1, 0);
  const bool ended = job.outcomes.AwaitCount(1);
  job.End();
  REQUIRE(ended);
  CHECK(job.outcomes.Sorted() == Ends{{0, false}});
}

TEST_CASE("a pull and initial values end with the session", "[pipeline]") {
  SmallPipeline job;
  job.servers[0]->DecideAll(Fate::kHold);
  Outcomes ended;
  std::thread pulls([&] { ended.Note(0, !absl::IsDataLoss(job.pipeline->PullAll({}).status())); });
  std::thread sends([&] {
    const absl::Status sent = job.pipeline->SendInitialValues(std::vector<float>(job.layout.params()));
    ended.Note(1, !absl::IsDataLoss(sent));
  });
  job.servers[0]->AwaitHeld(2);
  job.session->Fail(absl::DataLossError("of the test"));
  // Sooner than a reply's deadline.
  const bool in_time = ended.AwaitCount(2, absl::Seconds(10));
  job.End();
  pulls.join();
  sends.join();
  CHECK(in_time);
  CHECK(ended.Sorted() == Ends{{0, false}, {1, false}});
}

TEST_CASE("a pipeline that ends has called back for all of its pushes, and calls no more", "[pipeline]") {
  SmallPipeline job({}, /*depth=*/2);
  job.servers[0]->DecideAll(Fate::kHoldAnswer);
  for (int i = 0; i < 6; ++i) job.Submit(1, i);
  job.servers[0]->AwaitHeld(2);
  std::thread ends([&] { job.pipeline = nullptr; });
  job.session->Fail(absl::CancelledError("the worker ends"));
  ends.join();
  CHECK(job.outcomes.count() == 6);
  for (const auto& [push, applied] : job.outcomes.Sorted()) CHECK_FALSE(applied);
  // What was applied and not acknowledged is not sent again.
  CHECK(job.sums.taken() == 2 * job.layout.shard_count());
  CHECK_FALSE(job.servers[0]->Answer(0));
}

TEST_CASE("a pipeline that is ended waits for the pushes that go on", "[pipeline]") {
  SmallPipeline job({}, /*depth=*/2);
  job.servers[0]->DecideAll(Fate::kHold);
  for (int i = 0; i < 3; ++i) job.Submit(1, i);
  job.servers[0]->AwaitHeld(2);
  std::thread ends([&] { job.pipeline = nullptr; });
  job.servers[0]->AnswerAll();
  ends.join();
  CHECK(job.outcomes.Sorted() == Ends{{0, true}, {1, true}, {2, true}});
  CHECK(job.sum() == 3);
}

}  // namespace recon
