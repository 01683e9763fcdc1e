// Pushes whose gradients are still being computed.

#include <memory>
#include <utility>
#include <vector>

#include "catch2/catch.hpp"
#include "tests/worker/comm/small_worker.h"
#include "worker/comm/comm_pipeline.h"

namespace recon {
namespace {

using Fate = FakeTransport::Fate;
using Ends = std::vector<std::pair<int, bool>>;

// Of more than one frame: of each, half.
SmallWorker::Setup TwoFrames() {
  SmallWorker::Setup setup;
  setup.sizes = {400'000};
  return setup;
}

std::shared_ptr<GradientProgress> SubmitAsItComes(SmallPipeline* job, int number, uint64_t history = 0) {
  CommPipeline::Push push = job->PushOf(1, number);
  push.history = history;
  push.progress = std::make_shared<GradientProgress>(&job->layout);
  auto progress = push.progress;
  job->pipeline->Submit(std::move(push));
  return progress;
}

}  // namespace

TEST_CASE("a gradient is sent as it comes, and counts when all of it is there", "[pipeline]") {
  SmallPipeline job(TwoFrames());
  const auto progress = SubmitAsItComes(&job, 0);
  progress->Filled(100'000, 300'000);
  job.servers[0]->AwaitRequests(1);
  CHECK(job.outcomes.count() == 0);
  progress->Filled(0, 50'000);
  progress->Complete();
  job.AwaitOutcomes(1);
  job.pipeline->WaitUntilBelow(1);
  CHECK(job.sum() == 1);
  CHECK(job.sums.taken() == job.layout.shard_count());
  CHECK(job.sums.seen_again() == 0);
  for (const Frame& frame : job.servers[0]->requests()) {
    CHECK(frame.header.push_parts == job.layout.shard_count());
  }
}

TEST_CASE("a gradient that was sent as it came is sent again as a whole, and counts once", "[pipeline]") {
  SmallPipeline job(TwoFrames());
  job.servers[0]->DecideAll(Fate::kHold);
  const auto progress = SubmitAsItComes(&job, 0);
  progress->Filled(0, 300'000);
  job.servers[0]->AwaitHeld(1);
  job.servers[0]->AnswerAll();
  job.servers[0]->FailNext(absl::UnavailableError("draining"));
  progress->Complete();
  job.AwaitOutcomes(1);
  CHECK(job.outcomes.Sorted() == Ends{{0, true}});
  CHECK(job.sum() == 1);
  CHECK(job.sums.seen_again() > 0);
  CHECK(job.CounterOf("recon_worker_resent_pushes_total") == 1);
}

TEST_CASE("a gradient that is not computed to its end is given up and fails nothing", "[pipeline]") {
  SmallPipeline job(TwoFrames());
  job.servers[0]->DecideAll(Fate::kHold);
  const auto progress = SubmitAsItComes(&job, 0);
  progress->Filled(0, 300'000);
  job.servers[0]->AwaitHeld(1);
  progress->Abandon();
  job.AwaitOutcomes(1);
  job.pipeline->WaitUntilBelow(1);
  CHECK(job.outcomes.Sorted() == Ends{{0, false}});
  CHECK(job.session->fatal().ok());
  CHECK_FALSE(job.servers[0]->Answer(0));
  job.servers[0]->AnswerAll();
  job.Submit(2, 1);
  job.AwaitOutcomes(2);
  CHECK(job.sum() == 2);
}

TEST_CASE("a push that is dropped while its gradient comes counts as dropped once", "[pipeline]") {
  SmallPipeline job(TwoFrames());
  const auto progress = SubmitAsItComes(&job, 0, /*history=*/3);
  progress->Complete();
  job.AwaitOutcomes(1);
  job.pipeline->WaitUntilBelow(1);
  CHECK(job.outcomes.Sorted() == Ends{{0, false}});
  CHECK(job.CounterOf("recon_worker_dropped_pushes_total") == 1);
  CHECK(job.servers[0]->requests().empty());
}

}  // namespace recon
