#include "worker/training/trainer.h"

#include <limits>
#include <optional>
#include <thread>
#include <utility>
#include <vector>

#include "catch2/catch.hpp"
#include "common/base/limits.h"
#include "tests/worker/training/small_trainer.h"

namespace recon {
namespace {

using Fate = FakeTransport::Fate;
using Kind = Trainer::Work::Kind;

Trainer::Options Deep(int depth) {
  Trainer::Options options;
  options.depth = depth;
  return options;
}

SmallWorker::Setup OfBound(int bound) {
  SmallWorker::Setup setup;
  setup.job.mutable_job()->set_bound(bound);
  return setup;
}

}  // namespace

TEST_CASE("a split is completed when all of its pushes are acknowledged, and splits in their order",
          "[trainer]") {
  SmallTrainer job({}, Deep(8));
  const auto lease = job.BeginWithLease(2);
  job.servers[0]->DecideAll(Fate::kHold);
  job.TrainSplit(lease, 0, {1, 2, 3, 4});
  job.TrainSplit(lease, 1, {5, 6, 7, 8});
  job.servers[0]->AwaitHeld(8);
  // The newest first: the second split has all of its acknowledgements before the first.
  for (int i = 0; i < 7; ++i) job.servers[0]->AnswerNewest();
  REQUIRE(job.trainer->MakeRoomForSplit().ok());
  CHECK(job.completed().empty());
  job.servers[0]->AnswerAll();
  REQUIRE(job.trainer->Finish().ok());
  CHECK(job.completed() == std::vector<uint32_t>{0, 1});
  for (const CompleteRequest& request : job.head->completions.asked()) CHECK_FALSE(request.without_push());
  CHECK(job.abandoned() == 0);
  CHECK(job.parameter() == -36);
  CHECK(job.session->counters()->steps == 8);
  CHECK(job.session->counters()->samples == 8);
}

TEST_CASE("no more splits are opened than may be open before one has ended", "[trainer]") {
  SmallTrainer job({}, Deep(limits::kPipelineDepthMax));
  const auto lease = job.BeginWithLease(limits::kOpenSplitsMax + 1);
  job.servers[0]->DecideAll(Fate::kHold);
  for (uint32_t i = 0; i < limits::kOpenSplitsMax; ++i) {
    REQUIRE(job.trainer->MakeRoomForSplit().ok());
    job.TrainSplit(lease, i, {1});
  }
  CHECK(job.completed().empty());
  job.servers[0]->AwaitHeld(limits::kOpenSplitsMax);
  Outcomes ended;
  std::thread opens([&] { ended.Note(0, job.trainer->MakeRoomForSplit().ok()); });
  for (size_t i = 0; i < limits::kOpenSplitsMax; ++i) {
    CHECK(ended.count() == 0);
    job.servers[0]->AnswerOldest();
  }
  opens.join();
  CHECK(ended.Sorted() == std::vector<std::pair<int, bool>>{{0, true}});
  CHECK(job.completed().size() == limits::kOpenSplitsMax);
}

TEST_CASE("a worker runs ahead of its acknowledgements by the bound and no further", "[trainer]") {
  for (const int bound : {0, 2}) {
    SmallTrainer job(OfBound(bound), Deep(8));
    const auto lease = job.BeginWithLease(2);
    job.servers[0]->DecideAll(Fate::kHold);
    // Answers one only when as many are under way as the bound lets out.
    std::thread answers([&] {
      for (size_t left = 8; left > 0; --left) {
        job.servers[0]->AwaitHeld(std::min<size_t>(left, static_cast<size_t>(bound) + 1));
        job.servers[0]->AnswerOldest();
      }
    });
    const Trainer::SplitPtr first = job.trainer->OpenSplit(lease, 0);
    const Trainer::SplitPtr second = job.trainer->OpenSplit(lease, 1);
    std::vector<bool> computed;
    for (int i = 0; i < 8; ++i) computed.push_back(job.Batch(i < 4 ? first : second, 1).ok());
    (void)job.trainer->CloseSplit(first);
    (void)job.trainer->CloseSplit(second);
    const absl::Status finished = job.trainer->Finish();
    answers.join();
    CHECK(computed == std::vector<bool>(8, true));
    CHECK(finished.ok());
    CHECK(job.servers[0]->held_most() == static_cast<size_t>(bound) + 1);
    // Each was computed from what all but so many before it have made.
    const std::vector<Frame> pushes = job.pushes();
    REQUIRE(pushes.size() == 8);
    for (const Frame& push : pushes) {
      const uint64_t step = push.header.step, ahead = static_cast<uint64_t>(bound);
      CHECK(push.parts[0].version >= (step > ahead ? step - ahead : 0));
    }
    CHECK(job.completed() == std::vector<uint32_t>{0, 1});
  }
}

TEST_CASE("a lease that is lost in the middle of a split is not gone on with, and not completed",
          "[trainer]") {
  SmallTrainer job;
  const auto lease = job.BeginWithLease(2);
  const Trainer::SplitPtr split = job.trainer->OpenSplit(lease, 0);
  REQUIRE(job.Batch(split, 1).ok());
  HeartbeatReply lost;
  lost.add_lost(5);
  job.head->heartbeats.Next(lost);
  while (!job.trainer->lost(lease)) job.head->heartbeats.AwaitMore(1);
  CHECK(absl::IsAborted(job.Batch(split, 1)));
  CHECK(job.trainer->dropped(split));
  REQUIRE(job.trainer->CloseSplit(split).ok());
  REQUIRE(job.trainer->Finish().ok());
  CHECK(job.completed().empty());
  CHECK(job.pushes().size() == 1);
  // Another lease goes on as if nothing had been.
  const auto next = job.TakeLease(6, 2, 1);
  job.TrainSplit(next, 0, {1, 1, 1, 1});
  REQUIRE(job.trainer->Finish().ok());
  CHECK(job.completed() == std::vector<uint32_t>{2});
}

TEST_CASE("a split of which a push was dropped is given back", "[trainer]") {
  SmallTrainer job;
  const auto lease = job.BeginWithLease(2);
  job.sums.CloseStep(1);
  const Trainer::SplitPtr split = job.trainer->OpenSplit(lease, 0);
  for (int i = 0; i < 4; ++i) {
    const absl::Status status = job.Batch(split, 1);
    CHECK((status.ok() || (i > 1 && absl::IsAborted(status))));
  }
  REQUIRE(job.trainer->CloseSplit(split).ok());
  REQUIRE(job.trainer->Finish().ok());
  CHECK(job.trainer->dropped(split));
  CHECK(job.completed().empty());
  CHECK(job.abandoned() == 1);
  CHECK(job.trainer->lost(lease));
}

TEST_CASE("a loss that is not finite ends a worker whose job does not roll back", "[trainer]") {
  SmallTrainer job;
  const auto lease = job.BeginWithLease(1);
  const Trainer::SplitPtr split = job.trainer->OpenSplit(lease, 0);
  Trainer::Computed computed = job.OneSample();
  computed.loss = std::numeric_limits<double>::quiet_NaN();
  CHECK(absl::IsOutOfRange(job.Batch(split, 1, computed)));
  CHECK(job.pushes().empty());
}

TEST_CASE("a loss that is not finite waits for the rollback, and goes on from there with another split",
          "[trainer]") {
  SmallWorker::Setup setup = OfBound(0);
  setup.job.mutable_job()->set_rolls_back(true);
  SmallTrainer job(setup);
  const auto lease = job.BeginWithLease(2);
  const Trainer::SplitPtr split = job.trainer->OpenSplit(lease, 0);
  REQUIRE(job.Batch(split, 1).ok());
  Trainer::Computed computed = job.OneSample();
  computed.loss = std::numeric_limits<double>::infinity();
  absl::Status status;
  std::thread trains([&] { status = job.Batch(split, 1, computed); });
  while (job.head->heartbeats.AwaitMore(1).progress().diverged().empty()) {
  }
  job.RestartServers();
  job.sums.SetValues(50);
  job.ChangeJob([](JobConfig* policy) { policy->set_history(1); });
  trains.join();
  REQUIRE(status.ok());
  CHECK(job.trainer->dropped(split));
  CHECK_FALSE(job.session->diverged());
  CHECK(job.head->heartbeats.AwaitMore(2).progress().diverged().empty());
  REQUIRE(job.trainer->CloseSplit(split).ok());
  const auto next = job.TakeLease(6, 2, 1);
  const Trainer::SplitPtr again = job.trainer->OpenSplit(next, 0);
  const auto place = job.trainer->BeginBatch(8, again);
  REQUIRE((place.ok() && place->has_value()));
  CHECK((*place)->parameters.values[0] == 50);
  job.Fill(**place, 1);
  REQUIRE(job.trainer->EndBatch(job.OneSample()).ok());
  REQUIRE(job.trainer->CloseSplit(again).ok());
  REQUIRE(job.trainer->Finish().ok());
  CHECK(job.parameter() == 49);
  CHECK(job.completed() == std::vector<uint32_t>{2});
}

TEST_CASE("a worker that is stopped sends what was kept back, and gives its split back", "[trainer]") {
  SmallWorker::Setup setup;
  setup.sizes = {2};
  setup.codec = "topk:0.5";
  SmallTrainer job(setup);
  const auto lease = job.BeginWithLease(1);
  const Trainer::SplitPtr split = job.trainer->OpenSplit(lease, 0);
  for (int i = 0; i < 3; ++i) {
    const auto place = job.trainer->BeginBatch(i, split);
    REQUIRE((place.ok() && place->has_value()));
    (*place)->gradient->host = {1, 8};
    REQUIRE(job.trainer->EndBatch(job.OneSample()).ok());
  }
  job.trainer->RequestStop();
  REQUIRE(job.trainer->CloseSplit(split).ok());
  REQUIRE(job.trainer->Finish().ok());
  CHECK(job.sums.values() == std::vector<float>{-3, -24});
  CHECK(job.session->counters()->residual_norm == 0);
  CHECK(job.completed().empty());
  CHECK(job.abandoned() == 1);
}

TEST_CASE("nothing is pushed of a batch that is skipped or dropped, and its samples count as done",
          "[trainer]") {
  SmallTrainer job;
  const auto lease = job.BeginWithLease(2);
  const Trainer::SplitPtr first = job.trainer->OpenSplit(lease, 0);
  for (int i = 0; i < 4; ++i) {
    REQUIRE(job.trainer->BeginBatch(i, first).ok());
    CHECK(job.trainer->batch_begun());
    i % 2 == 0 ? job.trainer->SkipBatch() : job.trainer->DropBatch();
    CHECK_FALSE(job.trainer->batch_begun());
  }
  REQUIRE(job.trainer->CloseSplit(first).ok());
  const Trainer::SplitPtr second = job.trainer->OpenSplit(lease, 1);
  REQUIRE(job.trainer->BeginBatch(4, second).ok());
  job.trainer->SkipBatch();
  REQUIRE(job.Batch(second, 1).ok());
  REQUIRE(job.trainer->CloseSplit(second).ok());
  REQUIRE(job.trainer->Finish().ok());
  CHECK(job.session->counters()->skipped_batches == 3);
  CHECK(job.parameter() == -1);
  const std::vector<CompleteRequest> asked = job.head->completions.asked();
  REQUIRE(asked.size() == 2);
  CHECK(asked[0].without_push());
  CHECK_FALSE(asked[1].without_push());
}

TEST_CASE("a batch of several splits completes both or none", "[trainer]") {
  for (const bool dropped : {false, true}) {
    SmallTrainer job;
    const auto lease = job.BeginWithLease(2);
    if (dropped) job.sums.CloseStep(0);
    const Trainer::SplitPtr first = job.trainer->OpenSplit(lease, 0);
    const Trainer::SplitPtr second = job.trainer->OpenSplit(lease, 1);
    const auto place = job.trainer->BeginBatch(0, first);
    REQUIRE((place.ok() && place->has_value()));
    job.Fill(**place, 1);
    job.trainer->AlsoOf(second);
    REQUIRE(job.trainer->EndBatch(job.OneSample()).ok());
    REQUIRE(job.trainer->CloseSplit(first).ok());
    REQUIRE(job.trainer->CloseSplit(second).ok());
    REQUIRE(job.trainer->Finish().ok());
    CHECK(job.completed() == (dropped ? std::vector<uint32_t>{} : std::vector<uint32_t>{0, 1}));
    CHECK(job.trainer->dropped(second) == dropped);
  }
}

TEST_CASE("a gradient is pushed as it comes where a push needs no more than a part of it", "[trainer]") {
  SmallTrainer job;
  const auto lease = job.BeginWithLease(1);
  const Trainer::SplitPtr split = job.trainer->OpenSplit(lease, 0);
  const auto whole = job.trainer->BeginBatch(0, split);
  REQUIRE((whole.ok() && whole->has_value()));
  REQUIRE(job.trainer->PushAsItComes(job.OneSample()).value());
  CHECK(job.trainer->pushing());
  job.Fill(**whole, 1);
  REQUIRE(job.trainer->EndBatch(job.OneSample()).ok());
  const auto part = job.trainer->BeginBatch(1, split);
  REQUIRE((part.ok() && part->has_value()));
  REQUIRE(job.trainer->PushAsItComes(job.OneSample()).value());
  job.Fill(**part, 1);
  job.trainer->Filled(0, 4);
  job.trainer->DropBatch();  // The rest of it is 0.
  REQUIRE(job.trainer->CloseSplit(split).ok());
  REQUIRE(job.trainer->Finish().ok());
  CHECK(job.sums.values() == std::vector<float>{-2, -2, -2, -2, -1, -1, -1, -1, -1, -1, -1, -1});

  Trainer::Options accumulates;
  accumulates.accumulate = 2;
  SmallTrainer rounds({}, accumulates);
  const auto other = rounds.BeginWithLease(1);
  const Trainer::SplitPtr of_round = rounds.trainer->OpenSplit(other, 0);
  REQUIRE(rounds.trainer->BeginBatch(0, of_round).ok());
  CHECK_FALSE(rounds.trainer->PushAsItComes(rounds.OneSample()).value());
}

TEST_CASE("who is late for a quorum pushes gradients whole until one is in time", "[trainer]") {
  for (const uint32_t quorum : {0, 2}) {
    SmallWorker::Setup setup = OfBound(0);
    setup.job.mutable_job()->mutable_policy()->set_quorum(quorum);
    SmallTrainer job(setup);
    const auto lease = job.BeginWithLease(1);
    const Trainer::SplitPtr split = job.trainer->OpenSplit(lease, 0);
    job.sums.CloseStep(0);
    RejoinReply later;
    later.set_step(12);
    job.head->rejoins.Next(later);
    std::vector<bool> as_they_came;
    for (uint64_t batch = 0; batch < 3; ++batch) {
      const auto place = job.trainer->BeginBatch(batch, split);
      REQUIRE((place.ok() && place->has_value()));
      as_they_came.push_back(job.trainer->PushAsItComes(job.OneSample()).value());
      job.Fill(**place, 1);
      REQUIRE(job.trainer->EndBatch(job.OneSample()).ok());
    }
    CHECK(as_they_came == std::vector<bool>{true, quorum == 0, true});
    REQUIRE(job.trainer->CloseSplit(split).ok());
    REQUIRE(job.trainer->Finish().ok());
    CHECK(job.head->rejoins.asked().size() == 1);
    CHECK(job.parameter() == -3);
  }
}

TEST_CASE("what a head has for a worker is said by kind", "[trainer]") {
  SmallWorker::Setup setup;
  setup.job.set_has_values(false);
  SmallTrainer job(setup);
  REQUIRE(job.trainer->Begin().ok());
  CHECK(job.servers[0]->requests().empty());
  CHECK(job.trainer->NextWork()->kind == Kind::kNone);
  AcquireReply wanted;
  wanted.set_needs_initial_values(true);
  job.head->acquisitions.Next(wanted);
  CHECK(job.trainer->NextWork()->kind == Kind::kInitialValues);
  const std::vector<float> values(job.layout.params(), 7);
  REQUIRE(job.trainer->SendInitialValues(values).ok());
  CHECK(job.parameter() == 7);
  job.Offer(5, 0, 1, LEASE_EVAL);
  CHECK(job.trainer->NextWork()->kind == Kind::kEvaluate);
  AcquireReply finished;
  finished.set_phase(PHASE_FINISHED);
  job.head->acquisitions.Next(finished);
  CHECK(job.trainer->NextWork()->kind == Kind::kFinished);
}

TEST_CASE("initial values that a server does not take for a passing reason are asked for again",
          "[trainer]") {
  SmallWorker::Setup setup;
  setup.job.set_has_values(false);
  SmallTrainer job(setup);
  REQUIRE(job.trainer->Begin().ok());
  const std::vector<float> values(job.layout.params(), 7);
  job.servers[0]->FailNext(absl::UnavailableError("restarting"));
  CHECK(job.trainer->SendInitialValues(values).ok());
  CHECK(job.parameter() == 0);
  job.servers[0]->FailNext(absl::InvalidArgumentError("another model"));
  CHECK(absl::IsInvalidArgument(job.trainer->SendInitialValues(values)));
}

TEST_CASE("an evaluation is of what the servers have when all pushes are acknowledged", "[trainer]") {
  SmallTrainer job;
  const auto lease = job.BeginWithLease(1);
  job.TrainSplit(lease, 0, {1, 1, 1, 1});
  job.Offer(6, 0, 1, LEASE_EVAL);
  const auto work = job.trainer->NextWork();
  REQUIRE(work.ok());
  const auto parameters = job.trainer->BeginEvaluation();
  REQUIRE(parameters.ok());
  CHECK(parameters->values[0] == -4);
  EvalResult result;
  result.set_samples(4);
  result.set_correct(3);
  REQUIRE(job.trainer->EndEvaluation(work->lease, result).ok());
  CHECK(job.head->completions.asked().back().eval().correct() == 3);
  // Another worker has it by now: that is nobody's fault.
  job.Offer(7, 0, 1, LEASE_EVAL);
  const auto again = job.trainer->NextWork();
  REQUIRE(again.ok());
  job.head->completions.Next(absl::AbortedError("another worker has it"));
  CHECK(job.trainer->EndEvaluation(again->lease, result).ok());
}

TEST_CASE(
    "a synchronous worker that settles has what its push brought, and an asynchronous one does not wait",
    "[trainer]") {
  for (const int bound : {0, -1}) {
    SmallTrainer job(OfBound(bound));
    const auto lease = job.BeginWithLease(1);
    job.servers[0]->DecideAll(Fate::kHold);
    const Trainer::SplitPtr split = job.trainer->OpenSplit(lease, 0);
    const bool pushed = job.Batch(split, 1).ok();
    const bool closed = job.trainer->CloseSplit(split).ok();
    std::thread answers([&] {
      job.servers[0]->AwaitHeld(1);
      if (bound == 0) job.servers[0]->AnswerOldest();
    });
    const auto view = job.trainer->Settle();
    answers.join();
    const std::vector<uint32_t> completed = job.completed();
    job.servers[0]->AnswerAll();
    CHECK(job.trainer->Finish().ok());
    REQUIRE((pushed && closed && view.ok()));
    CHECK(view->has_value() == (bound == 0));
    if (bound == 0) CHECK((*view)->values[0] == -1);
    CHECK(completed == (bound == 0 ? std::vector<uint32_t>{0} : std::vector<uint32_t>{}));
  }
}

TEST_CASE("a push weighs in its step what its batch does, and counts its samples", "[trainer]") {
  SmallTrainer job(OfBound(0));
  const auto lease = job.BeginWithLease(1);
  const Trainer::SplitPtr split = job.trainer->OpenSplit(lease, 0);
  Trainer::Computed computed = SmallTrainer::OneSample();
  computed.weight = 700;
  REQUIRE(job.Batch(split, 1, computed).ok());
  REQUIRE(job.Batch(split, 1).ok());
  REQUIRE(job.trainer->CloseSplit(split).ok());
  REQUIRE(job.trainer->Finish().ok());
  CHECK(job.samples_of_pushes() == std::vector<uint32_t>{700, 1});
  CHECK(job.session->counters()->samples == 2);
}

TEST_CASE("a session that fails ends the training thread's wait for a place", "[trainer]") {
  SmallWorker::Setup setup = OfBound(0);
  SetLocalSteps(1, setup.job.mutable_job());
  SmallTrainer job(setup);
  const auto lease = job.BeginWithLease(1);
  job.servers[0]->DecideAll(Fate::kHold);
  const Trainer::SplitPtr split = job.trainer->OpenSplit(lease, 0);
  REQUIRE(job.Batch(split, 1).ok());
  Outcomes ended;
  absl::Status status;
  std::thread trains([&] {
    status = job.Batch(split, 1);
    ended.Note(0, status.ok());
  });
  job.servers[0]->AwaitHeld(1);
  job.head->heartbeats.Otherwise(absl::PermissionDeniedError("not with this secret"));
  const bool in_time = ended.AwaitCount(1);
  job.End();
  trains.join();
  CHECK(in_time);
  CHECK(absl::IsPermissionDenied(status));
  CHECK(absl::IsPermissionDenied(job.trainer->Finish()));
}

TEST_CASE("parameters are pulled anew from a server that was started again, and training goes on",
          "[trainer]") {
  SmallTrainer job;
  const auto lease = job.BeginWithLease(1);
  const Trainer::SplitPtr split = job.trainer->OpenSplit(lease, 0);
  REQUIRE(job.Batch(split, 1).ok());
  *job.setup.job.add_adopted() = lease->task;
  job.RestartServers();
  for (int i = 1; i < 4; ++i) REQUIRE(job.Batch(split, 1).ok());
  REQUIRE(job.trainer->CloseSplit(split).ok());
  REQUIRE(job.trainer->Finish().ok());
  CHECK(job.parameter() == -4);
  CHECK(job.completed() == std::vector<uint32_t>{0});
  CHECK(job.trainer->Pull()->values[0] == -4);
  CHECK(job.replica.cluster_epoch() == 2);
}

}  // namespace recon
