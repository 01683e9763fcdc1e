#include "worker/comm/comm_pipeline.h"

#include <limits>
#include <memory>
#include <thread>
#include <utility>
#include <vector>

#include "catch2/catch.hpp"
#include "tests/worker/comm/small_worker.h"

namespace recon {
namespace {

using Fate = FakeTransport::Fate;
using Ends = std::vector<std::pair<int, bool>>;

SmallWorker::Setup OfServers(uint32_t servers) {
  SmallWorker::Setup setup;
  setup.servers = servers;
  return setup;
}

SmallWorker::Setup Synchronous(uint32_t servers = 1) {
  SmallWorker::Setup setup = OfServers(servers);
  setup.job.mutable_job()->set_bound(0);
  return setup;
}

// Encodes as another does, and keeps the first value of each gradient.
class NotingEncoder : public GradientEncoder {
 public:
  NotingEncoder(std::unique_ptr<GradientEncoder> encoder, std::vector<float>* seen)
      : encoder_(std::move(encoder)), seen_(seen) {}

  absl::StatusOr<EncodedPush> Encode(GradientBuffer* gradient, const EncodePlan& plan) override {
    seen_->push_back(gradient->host[0]);
    return encoder_->Encode(gradient, plan);
  }

 private:
  const std::unique_ptr<GradientEncoder> encoder_;
  std::vector<float>* const seen_;
};

RejoinReply Later(uint64_t step) {
  RejoinReply reply;
  reply.set_step(step);
  return reply;
}

}  // namespace

TEST_CASE("small gradients arrive in fp16, and what becomes 0 beside large ones is counted", "[pipeline]") {
  SmallWorker::Setup setup;
  setup.codec = "fp16";
  SmallPipeline job(setup);
  job.Submit(0x1p-60f, 0);
  job.AwaitOutcomes(1);
  CHECK(job.sum() == 0x1p-60f);
  CHECK(job.session->counters()->underflown == 0);
  CommPipeline::Push push = job.PushOf(0x1p-60f, 1);
  push.gradient->host[0] = 1;
  job.pipeline->Submit(std::move(push));
  job.AwaitOutcomes(2);
  const uint64_t lost = job.layout.shards()[0].size - 1;
  CHECK(job.session->counters()->underflown == lost);
  CHECK(job.session->counters()->saturated == 0);
  CHECK(job.CounterOf("recon_worker_underflown_values_total") == static_cast<double>(lost));
}

TEST_CASE("pushes are encoded in their order, whatever the order of their answers", "[pipeline]") {
  SmallPipeline job({}, /*depth=*/3);
  std::vector<float> seen;
  job.pipeline->SetEncoder(std::make_unique<NotingEncoder>(*job.space.NewEncoder({}), &seen));
  job.servers[0]->DecideAll(Fate::kHold);
  for (int i = 0; i < 9; ++i) job.Submit(static_cast<float>(1 << i), i);
  for (int i = 0; i < 3; ++i) {
    job.servers[0]->AwaitHeld(3);
    for (int k = 0; k < 3; ++k) job.servers[0]->AnswerNewest();
  }
  job.AwaitOutcomes(9);
  job.pipeline->WaitUntilBelow(1);
  CHECK(seen == std::vector<float>{1, 2, 4, 8, 16, 32, 64, 128, 256});
  CHECK(job.sum() == 511);
  Ends all;
  for (int i = 0; i < 9; ++i) all.emplace_back(i, true);
  CHECK(job.outcomes.Sorted() == all);
}

TEST_CASE("no more pushes are under way than the depth, and there is room as soon as one has ended",
          "[pipeline]") {
  SmallPipeline job({}, /*depth=*/2);
  job.servers[0]->DecideAll(Fate::kHold);
  for (int i = 0; i < 5; ++i) job.Submit(1, i);
  job.servers[0]->AwaitHeld(2);
  for (size_t ended = 1; ended <= 3; ++ended) {
    job.servers[0]->AnswerOldest();
    job.pipeline->WaitUntilBelow(static_cast<int>(6 - ended));
    job.servers[0]->AwaitRequests(2 + ended);
    job.servers[0]->AwaitHeld(2);
  }
  job.servers[0]->AnswerAll();
  job.pipeline->WaitUntilBelow(1);
  CHECK(job.servers[0]->held_most() == 2);
  CHECK(job.outcomes.count() == 5);
  CHECK(job.sum() == 5);
}

TEST_CASE("replies release who waits for room, and are there in the order in which they came", "[pipeline]") {
  SmallPipeline job({}, /*depth=*/2);
  job.servers[0]->DecideAll(Fate::kHold);
  for (int i = 0; i < 2; ++i) job.Submit(1, i);
  job.servers[0]->AwaitHeld(2);
  job.servers[0]->AnswerOldest();
  CHECK_FALSE(job.pipeline->WaitUntilBelowOrReplies(1));
  CHECK(job.pipeline->TakeReplies().size() == 1);
  job.servers[0]->AnswerOldest();
  job.pipeline->WaitUntilBelow(1);
  const std::vector<Frame> replies = job.pipeline->TakeReplies();
  REQUIRE(replies.size() == 1);
  CHECK(replies[0].parts[0].version == 2);
  CHECK(job.pipeline->WaitUntilBelowOrReplies(1));
}

TEST_CASE("a push that a server does not take is sent again until it does", "[pipeline]") {
  SmallPipeline job;
  job.servers[0]->FailNext(absl::UnavailableError("draining"));
  job.servers[0]->FailNext(absl::DeadlineExceededError("the step is not closed yet"));
  job.servers[0]->FailNext(absl::ResourceExhaustedError("the disk is full"));
  job.Submit(1, 0);
  job.AwaitOutcomes(1);
  CHECK(job.outcomes.Sorted() == Ends{{0, true}});
  CHECK(job.servers[0]->requests().size() == 4);
  CHECK(job.CounterOf("recon_worker_resent_pushes_total") == 3);
  CHECK(job.sum() == 1);
  CHECK(job.session->fatal().ok());
}

TEST_CASE("a push whose answer was lost is seen again, counts once, and is acknowledged", "[pipeline]") {
  SmallPipeline job(OfServers(3));
  job.servers[1]->DecideAll(Fate::kLoseAnswer);
  job.Submit(1, 0);
  job.servers[1]->AwaitRequests(1);
  job.servers[1]->AnswerAll();
  job.AwaitOutcomes(1);
  CHECK(job.outcomes.Sorted() == Ends{{0, true}});
  CHECK(job.sum() == 1);
  CHECK(job.sums.taken() == 3);
  // All of it is sent again, to the servers that have answered, too.
  CHECK(job.sums.seen_again() >= 3);
}

TEST_CASE("what a cut connection had under way is sent again over the next", "[pipeline]") {
  SmallPipeline job(OfServers(2));
  for (const auto& server : job.servers) server->DecideAll(Fate::kHold);
  job.Submit(1, 0);
  job.Submit(2, 1);
  for (const auto& server : job.servers) {
    server->AwaitHeld(2);
    server->DecideAll(Fate::kAnswer);
  }
  job.client.Disconnect();
  job.AwaitOutcomes(2);
  CHECK(job.outcomes.Sorted() == Ends{{0, true}, {1, true}});
  CHECK(job.sum() == 3);
  CHECK(job.CounterOf("recon_worker_resent_pushes_total") == 2);
}

TEST_CASE(
    "a server that was started again is pushed to in its cluster epoch, with versions that it does "
    "not take for its own",
    "[pipeline]") {
  SmallPipeline job;
  CommPipeline::Push push = job.PushOf(1, 0);
  push.base_versions.assign(job.layout.shard_count(), 41);
  job.RestartServers();
  job.pipeline->Submit(std::move(push));
  job.AwaitOutcomes(1);
  CHECK(job.outcomes.Sorted() == Ends{{0, true}});
  const std::vector<Frame> requests = job.servers[0]->requests();
  REQUIRE(requests.size() == 2);
  CHECK(requests[0].header.cluster_epoch == 1);
  CHECK(requests[0].parts[0].version == 41);
  CHECK(requests[1].header.cluster_epoch == 2);
  CHECK(requests[1].parts[0].version == 0);
  CHECK(job.session->standing().registration == 2);
  CHECK(job.sum() == 1);
}

TEST_CASE("a worker whose name another process has taken drops its pushes and fails", "[pipeline]") {
  SmallPipeline job;
  job.head->registrations.Otherwise(absl::AlreadyExistsError("another process is w now"));
  job.servers[0]->FailNext(absl::FailedPreconditionError("incarnation 1 is no more"));
  job.Submit(1, 0);
  job.AwaitOutcomes(1);
  job.pipeline->WaitUntilBelow(1);
  CHECK(job.outcomes.Sorted() == Ends{{0, false}});
  CHECK(absl::IsAlreadyExists(job.session->fatal()));
  CHECK(job.sums.taken() == 0);
}

TEST_CASE("what a server refuses for good fails the session and is not sent again", "[pipeline]") {
  SmallPipeline job;
  job.servers[0]->FailNext(absl::InvalidArgumentError("another model"));
  job.Submit(1, 0);
  job.AwaitOutcomes(1);
  CHECK(job.outcomes.Sorted() == Ends{{0, false}});
  CHECK(job.session->fatal() == absl::InvalidArgumentError("another model"));
  CHECK(job.servers[0]->requests().size() == 1);
}

TEST_CASE("an asynchronous push whose step is closed is dropped, once, and the next goes on", "[pipeline]") {
  SmallPipeline job;
  job.sums.CloseStep(0);
  job.Submit(1, 0);
  job.Submit(2, 1);
  job.AwaitOutcomes(2);
  CHECK(job.outcomes.Sorted() == Ends{{0, false}, {1, true}});
  CHECK(job.CounterOf("recon_worker_dropped_pushes_total") == 1);
  CHECK(job.sum() == 2);
  CHECK(job.head->rejoins.asked().empty());
  CHECK(job.session->fatal().ok());
}

TEST_CASE("a synchronous push whose step is closed goes with the later one that the head names",
          "[pipeline]") {
  SmallPipeline job(Synchronous(2));
  job.sums.CloseStep(0);
  job.head->rejoins.Next(Later(12));
  job.Submit(1, 0);
  job.AwaitOutcomes(1);
  job.pipeline->WaitUntilBelow(1);
  CHECK(job.outcomes.Sorted() == Ends{{0, true}});
  CHECK(job.servers[0]->requests().back().header.step == 12);
  CHECK(job.CounterOf("recon_worker_late_pushes_total") == 1);
  CHECK(job.CounterOf("recon_worker_dropped_pushes_total") == 0);
  CHECK(job.sum() == 1);
  // Nothing is under way any more: neither the step it had nor the one it was given.
  CHECK(job.head->heartbeats.AwaitMore(2).next_step() == 13);
}

TEST_CASE("a synchronous push that nobody waits for any more is dropped, not sent later", "[pipeline]") {
  SmallPipeline job(Synchronous());
  job.sums.CloseStep(0);
  job.sums.CloseStep(1);
  CommPipeline::Push first = job.PushOf(1, 0);
  first.counts_no_more = [] { return true; };
  job.pipeline->Submit(std::move(first));
  job.AwaitOutcomes(1);
  CHECK(job.head->rejoins.asked().empty());
  job.head->rejoins.Next(absl::AbortedError("it holds no lease"));
  job.Submit(2, 1);
  job.AwaitOutcomes(2);
  CHECK(job.head->rejoins.asked().size() == 1);
  CHECK(job.outcomes.Sorted() == Ends{{0, false}, {1, false}});
  CHECK(job.CounterOf("recon_worker_dropped_pushes_total") == 2);
  CHECK(job.sums.taken() == 0);
}

TEST_CASE("a push of which one server has taken its part is not sent in a later step", "[pipeline]") {
  SmallPipeline job(Synchronous(2));
  job.servers[1]->FailNext(absl::AbortedError("step 0 is closed"));
  job.Submit(1, 0);
  job.AwaitOutcomes(1);
  CHECK(job.outcomes.Sorted() == Ends{{0, false}});
  CHECK(job.head->rejoins.asked().empty());
  CHECK(job.CounterOf("recon_worker_dropped_pushes_total") == 1);
}

TEST_CASE("where one server has closed the step and another does not answer, that one is asked first",
          "[pipeline]") {
  SmallPipeline job(Synchronous(2));
  job.sums.CloseStep(0);
  job.servers[1]->FailNext(absl::UnavailableError("draining"));
  job.head->rejoins.Next(Later(5));
  job.Submit(1, 0);
  job.AwaitOutcomes(1);
  CHECK(job.outcomes.Sorted() == Ends{{0, true}});
  CHECK(job.CounterOf("recon_worker_resent_pushes_total") == 1);
  CHECK(job.CounterOf("recon_worker_late_pushes_total") == 1);
  CHECK(job.head->rejoins.asked().size() == 1);
  CHECK(job.sum() == 1);
}

TEST_CASE("a dropped push takes with it what it carried; what the encoder kept back comes with the next",
          "[pipeline]") {
  SmallWorker::Setup setup;
  setup.sizes = {4};
  setup.codec = "topk:0.5";
  SmallPipeline job(setup);
  job.sums.CloseStep(0);
  CommPipeline::Push first = job.PushOf(0, 0);
  first.gradient->host = {8, 1, 16, 2};  // 8 and 16 go, 1 and 2 stay.
  job.pipeline->Submit(std::move(first));
  job.AwaitOutcomes(1);
  CommPipeline::Push second = job.PushOf(0, 1);
  second.gradient->host = {1, 64, 0, 32};
  job.pipeline->Submit(std::move(second));
  job.AwaitOutcomes(2);
  CHECK(job.sums.values() == std::vector<float>{0, -65, 0, -34});
  CommPipeline::Push third = job.PushOf(0, 2);
  third.plan = job.policy.PlanFor(0, /*flush_all=*/true, {}, Now());
  job.pipeline->Submit(std::move(third));
  job.AwaitOutcomes(3);
  CHECK(job.sums.values() == std::vector<float>{-1, -65, 0, -34});
  CHECK(job.outcomes.Sorted() == Ends{{0, false}, {1, true}, {2, true}});
}

TEST_CASE("learning rates, samples and the shards that are due travel with a push", "[pipeline]") {
  SmallPipeline job;
  CommPipeline::Push push = job.PushOf(1, 0);
  push.learning_rates = {0.5, 0.25, 0.125};
  push.shard_samples = {6, 0, 9};
  push.plan = job.policy.PlanFor(0, false, {true, false, true}, Now());
  push.base_versions = {3, 4, 5};
  job.pipeline->Submit(std::move(push));
  job.AwaitOutcomes(1);
  // Those of other samples have another frame.
  const std::vector<Frame> frames = job.servers[0]->requests();
  REQUIRE(frames.size() == 2);
  const std::vector<uint32_t> shards = {0, 2}, samples = {6, 9};
  const std::vector<double> rates = {0.5, 0.125};
  const std::vector<uint64_t> versions = {3, 5};
  for (size_t i = 0; i < 2; ++i) {
    REQUIRE(frames[i].parts.size() == 1);
    const PartHeader& part = frames[i].parts[0];
    CHECK(part.shard == shards[i]);
    CHECK(frames[i].header.samples == samples[i]);
    CHECK(frames[i].header.push_parts == 2);
    CHECK(part.has_learning_rate == 1);
    CHECK(part.learning_rate == rates[i]);
    CHECK(part.version == versions[i]);
  }
}

TEST_CASE("a gradient that is not finite fails the session, or waits for the rollback of a job that has one",
          "[pipeline]") {
  SmallPipeline fails;
  fails.Submit(std::numeric_limits<float>::infinity(), 0);
  fails.AwaitOutcomes(1);
  CHECK(absl::IsOutOfRange(fails.session->fatal()));
  CHECK(fails.servers[0]->requests().empty());

  SmallWorker::Setup setup;
  setup.job.mutable_job()->set_rolls_back(true);
  SmallPipeline waits(setup);
  waits.Submit(std::numeric_limits<float>::quiet_NaN(), 0);
  waits.AwaitOutcomes(1);
  CHECK(waits.session->fatal().ok());
  CHECK(waits.session->diverged());
  CHECK(waits.outcomes.Sorted() == Ends{{0, false}});
  CHECK(waits.servers[0]->requests().empty());
}

TEST_CASE("a push of another history, or of another kind, is dropped by name and not sent", "[pipeline]") {
  SmallPipeline job;
  CommPipeline::Push of_another_history = job.PushOf(1, 0);
  of_another_history.history = 3;
  job.pipeline->Submit(std::move(of_another_history));
  job.AwaitOutcomes(1);
  CHECK(job.CounterOf("recon_worker_dropped_pushes_total") == 1);
  CommPipeline::Push movement = job.PushOf(1, 1);
  movement.local = true;
  job.pipeline->Submit(std::move(movement));
  job.AwaitOutcomes(2);
  CHECK(job.CounterOf("recon_worker_dropped_pushes_total") == 2);
  // Made where zeros could be left out, and here they cannot.
  CommPipeline::Push without_zeros = job.PushOf(1, 2);
  without_zeros.plan.zeros_change_nothing = true;
  job.pipeline->Submit(std::move(without_zeros));
  job.AwaitOutcomes(3);
  CHECK(job.CounterOf("recon_worker_dropped_pushes_total") == 3);
  CHECK(job.outcomes.Sorted() == Ends{{0, false}, {1, false}, {2, false}});
  CHECK(job.servers[0]->requests().empty());
  CHECK(job.session->fatal().ok());
}

TEST_CASE("a pull tries until it has everything", "[pipeline]") {
  SmallPipeline job(OfServers(2));
  job.sums.SetValues(3);
  job.servers[0]->FailNext(absl::UnavailableError("draining"));
  job.RestartServers();
  const auto replies = job.pipeline->PullAll({});
  REQUIRE(replies.ok());
  Replica replica(&job.layout);
  for (const Frame& reply : *replies) REQUIRE(replica.Adopt(reply).ok());
  CHECK(replica.complete());
  CHECK(replica.cluster_epoch() == 2);
  for (const float value : replica.view().values) CHECK(value == 3);
}

TEST_CASE("a pull by versions gets what has changed, and all of it in another cluster epoch", "[pipeline]") {
  SmallPipeline job;
  CommPipeline::Push push = job.PushOf(1, 0);
  push.plan = job.policy.PlanFor(0, false, {false, true, false}, Now());
  job.pipeline->Submit(std::move(push));
  job.AwaitOutcomes(1);
  CommPipeline::Known known;
  known.versions = {0, 0, 0};
  known.cluster_epoch = 1;
  const auto changed = job.pipeline->PullAll(known);
  REQUIRE(changed.ok());
  REQUIRE(changed->size() == 1);
  std::vector<uint32_t> bytes;
  for (const PartHeader& part : changed->front().parts) bytes.push_back(part.payload_bytes);
  CHECK(bytes == std::vector<uint32_t>{0, 3 * sizeof(float), 0});
  known.cluster_epoch = 9;
  const auto all = job.pipeline->PullAll(known);
  REQUIRE(all.ok());
  CHECK(all->front().header.payload_bytes == job.layout.params() * sizeof(float));
  const std::vector<Frame> requests = job.servers[0]->requests();
  for (const PartHeader& part : requests.back().parts) CHECK(part.version == kNoVersion);
}

TEST_CASE("a pull by hashes gets the pages that are others", "[pipeline]") {
  SmallPipeline job;
  const auto pulled = job.pipeline->PullAll({});
  REQUIRE(pulled.ok());
  Replica replica(&job.layout);
  for (const Frame& reply : *pulled) REQUIRE(replica.TakeUnchecked(reply).ok());
  CHECK_FALSE(replica.complete());
  CommPipeline::Push push = job.PushOf(1, 0);
  push.plan = job.policy.PlanFor(0, false, {false, false, true}, Now());
  job.pipeline->Submit(std::move(push));
  job.AwaitOutcomes(1);
  CommPipeline::Known known;
  for (uint32_t i = 0; i < job.layout.shard_count(); ++i) known.hashes.push_back(replica.HashShard(i));
  const auto corrections = job.pipeline->PullAll(known);
  REQUIRE(corrections.ok());
  CHECK(corrections->front().header.payload_bytes == 5 * sizeof(float));
  for (const Frame& reply : *corrections) REQUIRE(replica.TakeCorrections(reply).ok());
  CHECK(replica.complete());
  CHECK(std::vector<float>(replica.view().values.begin(), replica.view().values.end()) == job.sums.values());
}

TEST_CASE("initial values are sent once, and those that are not finite never", "[pipeline]") {
  SmallPipeline job(OfServers(2));
  std::vector<float> values(job.layout.params(), 2.5f);
  REQUIRE(job.pipeline->SendInitialValues(values).ok());
  CHECK(job.sums.values() == values);
  job.servers[1]->FailNext(absl::FailedPreconditionError("another worker was asked"));
  CHECK(absl::IsFailedPrecondition(job.pipeline->SendInitialValues(values)));
  values[3] = std::numeric_limits<float>::quiet_NaN();
  const size_t before = job.servers[0]->requests().size();
  CHECK(absl::IsInvalidArgument(job.pipeline->SendInitialValues(values)));
  CHECK(job.servers[0]->requests().size() == before);
}

}  // namespace recon
