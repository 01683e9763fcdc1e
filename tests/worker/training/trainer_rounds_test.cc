// Rounds of several batches, and the policies that have them.

#include <algorithm>
#include <vector>

#include "catch2/catch.hpp"
#include "tests/worker/training/small_trainer.h"
#include "worker/training/trainer.h"

namespace recon {

TEST_CASE("accumulated gradients make one push of their mean, and a split's last has what is left",
          "[trainer]") {
  Trainer::Options options;
  options.accumulate = 3;
  SmallTrainer job({}, options);
  const auto lease = job.BeginWithLease(1);
  job.TrainSplit(lease, 0, {1, 2, 6, 4});
  REQUIRE(job.trainer->Finish().ok());
  CHECK(job.samples_of_pushes() == std::vector<uint32_t>{3, 1});
  CHECK(job.parameter() == -(3 + 4));
  CHECK(job.completed() == std::vector<uint32_t>{0});
  CHECK(job.session->counters()->steps == 4);
}

TEST_CASE("a round of local steps pushes how far it has moved, and ends with its split at the latest",
          "[trainer]") {
  SmallWorker::Setup setup;
  SetLocalSteps(3, setup.job.mutable_job());
  SmallTrainer job(setup);
  const auto lease = job.BeginWithLease(2);
  CHECK(job.trainer->local());
  job.TrainSplit(lease, 0, {1, 2, 6, 4});
  job.TrainSplit(lease, 1, {1, 1, 1, 1});
  REQUIRE(job.trainer->Finish().ok());
  CHECK(job.samples_of_pushes() == std::vector<uint32_t>{3, 1, 3, 1});
  CHECK(job.parameter() == -(9 + 4 + 3 + 1));
  CHECK(job.completed() == std::vector<uint32_t>{0, 1});
}

TEST_CASE("local steps go on from each other, and begin a round with what the servers have", "[trainer]") {
  SmallWorker::Setup setup;
  SetLocalSteps(2, setup.job.mutable_job());
  SmallTrainer job(setup);
  const auto lease = job.BeginWithLease(1);
  const Trainer::SplitPtr split = job.trainer->OpenSplit(lease, 0);
  std::vector<float> seen;
  for (int i = 0; i < 4; ++i) {
    const auto place = job.trainer->BeginBatch(i, split);
    REQUIRE((place.ok() && place->has_value()));
    seen.push_back((*place)->parameters.values[0]);
    job.Fill(**place, 1);
    REQUIRE(job.trainer->EndBatch(job.OneSample()).ok());
    // Another worker's push: it is seen with the reply to this one's.
    if (i == 0) job.sums.SetValues(100);
  }
  CHECK(seen == std::vector<float>{0, -1, 98, 97});
}

TEST_CASE("a lease that is lost in the middle of a round takes the round with it", "[trainer]") {
  SmallWorker::Setup setup;
  SetLocalSteps(4, setup.job.mutable_job());
  SmallTrainer job(setup);
  const auto lease = job.BeginWithLease(1);
  const Trainer::SplitPtr split = job.trainer->OpenSplit(lease, 0);
  REQUIRE(job.Batch(split, 1).ok());
  HeartbeatReply lost;
  lost.add_lost(5);
  job.head->heartbeats.Next(lost);
  while (!job.trainer->lost(lease)) job.head->heartbeats.AwaitMore(1);
  REQUIRE(job.trainer->CloseSplit(split).ok());
  const auto next = job.TakeLease(6, 2, 1);
  job.TrainSplit(next, 0, {1, 1, 1, 1});
  REQUIRE(job.trainer->Finish().ok());
  CHECK(job.parameter() == -4);
  CHECK(job.completed() == std::vector<uint32_t>{2});
}

TEST_CASE("a policy that is set while the job runs is gone by from the next batch on", "[trainer]") {
  SmallTrainer job;
  const auto lease = job.BeginWithLease(3);
  CHECK_FALSE(job.trainer->synchronous());
  job.TrainSplit(lease, 0, {1, 1, 1, 1});
  const auto keep = [&] {  // The lease stays its own over a registration.
    Lease left = lease->task;
    left.set_lease(job.session->standing().registration + 10);
    left.set_split(job.session->done(lease));
    job.setup.job.clear_adopted();
    *job.setup.job.add_adopted() = left;
  };
  REQUIRE(job.trainer->Finish().ok());
  keep();
  job.ChangeJob([](JobConfig* policy) { policy->set_bound(0); });
  job.TrainSplit(lease, 1, {1, 1, 1, 1});
  CHECK(job.trainer->synchronous());
  REQUIRE(job.trainer->Finish().ok());
  keep();
  job.ChangeJob([](JobConfig* policy) { SetLocalSteps(2, policy); });
  job.TrainSplit(lease, 2, {1, 2, 1, 2});
  CHECK(job.trainer->local());
  REQUIRE(job.trainer->Finish().ok());
  CHECK(job.samples_of_pushes() == std::vector<uint32_t>{1, 1, 1, 1, 1, 1, 1, 1, 2, 2});
  CHECK(job.parameter() == -14);
  CHECK(job.completed() == std::vector<uint32_t>{0, 1, 2});
  CHECK(job.CounterOf("recon_worker_dropped_pushes_total") == 0);
}

TEST_CASE("a round that another policy meets is not pushed, and its split is given back", "[trainer]") {
  SmallWorker::Setup setup;
  SetLocalSteps(4, setup.job.mutable_job());
  SmallTrainer job(setup);
  const auto lease = job.BeginWithLease(1);
  const Trainer::SplitPtr split = job.trainer->OpenSplit(lease, 0);
  REQUIRE(job.Batch(split, 1).ok());
  *job.setup.job.add_adopted() = lease->task;
  job.ChangeJob([](JobConfig* policy) { policy->clear_local(); });
  CHECK(absl::IsAborted(job.Batch(split, 1)));
  REQUIRE(job.trainer->CloseSplit(split).ok());
  REQUIRE(job.trainer->Finish().ok());
  CHECK(job.pushes().empty());
  CHECK(job.completed().empty());
  CHECK(job.abandoned() == 1);
}

TEST_CASE("a round that a stop meets is pushed", "[trainer]") {
  Trainer::Options options;
  options.accumulate = 4;
  SmallTrainer job({}, options);
  const auto lease = job.BeginWithLease(1);
  const Trainer::SplitPtr split = job.trainer->OpenSplit(lease, 0);
  REQUIRE(job.Batch(split, 1).ok());
  REQUIRE(job.Batch(split, 3).ok());
  job.trainer->RequestStop();
  REQUIRE(job.trainer->CloseSplit(split).ok());
  REQUIRE(job.trainer->Finish().ok());
  CHECK(job.samples_of_pushes() == std::vector<uint32_t>{2});
  CHECK(job.parameter() == -2);
}

TEST_CASE("learning rates of groups travel with a push, and with a round", "[trainer]") {
  for (const uint32_t accumulate : {1u, 2u}) {
    Trainer::Options options;
    options.accumulate = accumulate;
    SmallTrainer job({}, options);
    const auto lease = job.BeginWithLease(1);
    const Trainer::SplitPtr split = job.trainer->OpenSplit(lease, 0);
    for (int i = 0; i < 2; ++i) {
      Trainer::Computed computed = job.OneSample();
      computed.learning_rates = {0.5, 0.25, 0.125};
      REQUIRE(job.Batch(split, 1, computed).ok());
    }
    REQUIRE(job.trainer->CloseSplit(split).ok());
    REQUIRE(job.trainer->Finish().ok());
    CHECK(job.pushes().size() == 2 / accumulate);
    for (const Frame& push : job.pushes()) {
      REQUIRE(push.parts.size() == 3);
      for (const PartHeader& part : push.parts) {
        CHECK(part.has_learning_rate == 1);
        CHECK(part.learning_rate == 0.5 / (1 << part.shard));
      }
    }
  }
}

TEST_CASE("a group with a period of its own is pushed every so many steps, as the mean of those",
          "[trainer]") {
  SmallWorker::Setup setup;
  (*setup.job.mutable_job()->mutable_sync_periods())["b"] = 2;
  SmallTrainer job(setup);
  const auto lease = job.BeginWithLease(1);
  job.TrainSplit(lease, 0, {1, 3, 5, 9});
  REQUIRE(job.trainer->Finish().ok());
  const std::vector<Frame> pushes = job.pushes();
  for (const Frame& push : pushes) {
    const bool has_b =
        std::any_of(push.parts.begin(), push.parts.end(), [](const auto& part) { return part.shard == 1; });
    CHECK((!has_b || push.header.step % 2 == 1));
    // That of the two before.
    if (has_b) CHECK(push.header.samples == (push.parts.size() == 1 ? 2 : 1));
  }
  CHECK(job.sums.values() == std::vector<float>{-18, -18, -18, -18, -9, -9, -9, -18, -18, -18, -18, -18});
  CHECK(job.completed() == std::vector<uint32_t>{0});
}

TEST_CASE("fragments of local steps together push all that was moved, each part once", "[trainer]") {
  SmallWorker::Setup setup;
  SetLocalSteps(3, setup.job.mutable_job());
  setup.job.mutable_job()->mutable_local()->set_fragments(3);
  SmallTrainer job(setup);
  const auto lease = job.BeginWithLease(2);
  job.TrainSplit(lease, 0, {1, 2, 4, 8});
  const Trainer::SplitPtr last = job.trainer->OpenSplit(lease, 1);
  REQUIRE(job.Batch(last, 16).ok());
  // One fragment a push.
  for (const Frame& push : job.pushes()) {
    REQUIRE(push.parts.size() == 1);
    CHECK(push.parts[0].shard == push.header.step % 3);
  }
  job.trainer->RequestStop();
  REQUIRE(job.trainer->CloseSplit(last).ok());
  REQUIRE(job.trainer->Finish().ok());
  CHECK(job.parameter() == -31);
}

TEST_CASE(
    "a worker that settles has its own parameters within a round of local steps, and the job's after it",
    "[trainer]") {
  SmallWorker::Setup setup;
  setup.job.mutable_job()->set_bound(0);
  SetLocalSteps(2, setup.job.mutable_job());
  SmallTrainer job(setup);
  const auto lease = job.BeginWithLease(1);
  const Trainer::SplitPtr split = job.trainer->OpenSplit(lease, 0);
  REQUIRE(job.Batch(split, 1).ok());
  const auto within = job.trainer->Settle();
  REQUIRE((within.ok() && within->has_value()));
  CHECK((*within)->values[0] == -1);
  CHECK(job.pushes().empty());
  REQUIRE(job.Batch(split, 2).ok());
  const auto after = job.trainer->Settle();
  REQUIRE((after.ok() && after->has_value()));
  CHECK((*after)->values[0] == -3);
  CHECK(job.parameter() == -3);
}

TEST_CASE("an asynchronous worker moves what is averaged by its share of the workers", "[trainer]") {
  for (const int bound : {-1, 0}) {
    SmallWorker::Setup setup;
    setup.averaged = "b";
    setup.job.set_workers(2);
    setup.job.mutable_job()->set_bound(bound);
    SmallTrainer job(setup);
    HeartbeatReply two;
    two.set_workers(2);
    job.head->heartbeats.Otherwise(two);
    job.head->heartbeats.AwaitMore(2);
    const auto lease = job.BeginWithLease(1);
    job.TrainSplit(lease, 0, {1, 1, 1, 1});
    REQUIRE(job.trainer->Finish().ok());
    const std::vector<float> values = job.sums.values();
    CHECK(values[0] == -4);
    CHECK(values[4] == (bound == 0 ? -4 : -2));
  }
}

}  // namespace recon
