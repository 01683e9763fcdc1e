// Who works on what: leases, completions, evaluations.

#include "catch2/catch.hpp"
#include "common/base/limits.h"
#include "tests/server/control/coordinator_job.h"

namespace recon {
namespace {

using Worker = CoordinatorJob::Worker;

// All of a pass but its evaluation.
void TrainPass(const Worker& worker) {
  for (int split = 0; split < 4; ++split) {
    const Lease lease = worker.Acquire();
    REQUIRE(lease.kind() == LEASE_TRAIN);
    REQUIRE(worker.Train(lease).ok());
  }
}

// The worker takes a lease and computes a batch each half second; its last heartbeat.
HeartbeatRequest TrainedFor20Seconds(CoordinatorJob* job, const Worker& worker) {
  HeartbeatRequest beat = worker.Beat();
  beat.add_leases(worker.Acquire().lease());
  for (uint64_t batches = 1; batches <= 40; ++batches) {
    beat.mutable_progress()->set_batches(batches);
    REQUIRE(job->coordinator->Heartbeat(beat, job->at()).ok());
    job->PassAndTick(absl::Milliseconds(500));
  }
  return beat;
}

}  // namespace

TEST_CASE("a lease is one split of the first pass, and no other worker gets it", "[coordinator]") {
  CoordinatorJob job;
  const Worker one = job.Begin("one", 1);
  const Worker two = job.Join("two", 2);
  const Lease first = one.Acquire();
  CHECK(first.kind() == LEASE_TRAIN);
  CHECK(first.begin() == 0);
  CHECK(first.end() == 10);
  const Lease second = two.Acquire();
  CHECK(second.begin() == 10);
  CHECK(first.lease() != second.lease());
}

TEST_CASE("a lease that heartbeats renew goes on, one that they do not name goes to the next",
          "[coordinator]") {
  CoordinatorJob job;
  const Worker renews = job.Begin("renews", 1);
  const Worker forgets = job.Join("forgets", 2);
  const Lease kept = renews.Acquire();
  const Lease lost = forgets.Acquire();
  for (int second = 0; second < 11; ++second) {
    REQUIRE(renews.Heartbeat(kept)->lost_size() == 0);
    REQUIRE(forgets.Heartbeat().ok());
    job.PassAndTick(absl::Seconds(1));
  }
  CHECK(renews.Train(kept).ok());
  CHECK(absl::IsAborted(forgets.Train(lost)));
  const absl::StatusOr<HeartbeatReply> told = forgets.Heartbeat(lost);
  REQUIRE(told->lost_size() == 1);
  CHECK(told->lost(0) == lost.lease());
  CHECK(SameWork(renews.Acquire(), lost));
}

TEST_CASE("a split counts when something was pushed since its lease", "[coordinator]") {
  CoordinatorJob job;
  const Worker worker = job.Begin();
  const Lease lease = worker.Acquire();
  SECTION("nothing was: its samples are done again") {
    CHECK(absl::IsAborted(worker.Complete(lease)));
    CHECK(job.journal.completions.empty());
    CHECK(SameWork(worker.Acquire(), lease));
  }
  SECTION("a push of before the lease is none of it") {
    job.data_plane.Push(worker.id());
    REQUIRE(worker.Complete(lease).ok());
    const Lease next = worker.Acquire();
    CHECK(absl::IsAborted(worker.Complete(next)));
    CHECK(job.journal.completions.size() == 1);
  }
  SECTION("there was nothing to push, and the worker says so") {
    CompleteRequest request = worker.Completing(lease);
    request.set_without_push(true);
    CHECK(job.coordinator->Complete(request, job.at()).ok());
    CHECK(job.journal.completions.size() == 1);
  }
}

TEST_CASE("a completion is durable, with who did it and when, before it is acknowledged", "[coordinator]") {
  CoordinatorJob job;
  const Worker worker = job.Begin("w", 5);
  job.Pass(absl::Seconds(1));
  REQUIRE(worker.Train(worker.Acquire()).ok());
  REQUIRE(job.journal.completions.size() == 1);
  const Completion& completion = job.journal.completions.begin()->second;
  CHECK(completion.worker() == "w");
  CHECK(completion.incarnation() == 5);
  CHECK(completion.begin() == 0);
  CHECK(completion.end() == 10);
  CHECK(completion.unix_ms() == absl::ToUnixMillis(job.wall));
  CHECK(job.Status().samples_completed() == 10);
}

TEST_CASE("a completion that cannot be saved is not acknowledged: the lease goes on", "[coordinator]") {
  CoordinatorJob job;
  const Worker worker = job.Begin();
  const Lease lease = worker.Acquire();
  job.journal.fails = absl::UnavailableError("the disk is full");
  CHECK(worker.Train(lease) == job.journal.fails);
  CHECK(job.Status().samples_completed() == 0);
  CHECK(worker.Heartbeat(lease)->lost_size() == 0);
  job.journal.fails = absl::OkStatus();
  CHECK(worker.Complete(lease).ok());
  CHECK(job.Status().samples_completed() == 10);
}

TEST_CASE("a split that the journal has already is not done a third time", "[coordinator]") {
  CoordinatorJob job;
  const Worker worker = job.Begin();
  const Lease lease = worker.Acquire();
  Completion before;
  before.set_kind(LEASE_TRAIN);
  before.set_split(lease.split());
  before.set_end(10);
  REQUIRE(job.journal.SaveCompletion(before).ok());
  CHECK(absl::IsAborted(worker.Train(lease)));
  CHECK(worker.Heartbeat(lease)->lost_size() == 1);
  // It counts as done: the pass ends with the others.
  for (uint64_t begin = 10; begin < 40; begin += 10) {
    const Lease other = worker.Acquire();
    CHECK(other.begin() == begin);
    REQUIRE(worker.Train(other).ok());
  }
  CHECK(worker.Acquire().kind() == LEASE_EVAL);
}

TEST_CASE("the splits of a longer lease are completed in their order, and once", "[coordinator]") {
  CoordinatorJob::Options options = CoordinatorJob::AsynchronousJob();
  options.lease_target = absl::Seconds(2);
  CoordinatorJob job(options);
  const Worker worker = job.Begin();
  HeartbeatRequest beat = worker.Beat();
  beat.mutable_progress()->set_samples_per_second(10);
  REQUIRE(job.coordinator->Heartbeat(beat, job.at()).ok());
  Lease lease = worker.Acquire();
  REQUIRE(lease.splits() == 2);
  SECTION("the second is not completed before the first") {
    lease.set_split(1);
    CHECK(absl::IsAborted(worker.Train(lease)));
    CHECK(job.journal.completions.empty());
  }
  SECTION("the first is said twice, since the reply was lost, and counts once") {
    REQUIRE(worker.Train(lease).ok());
    CHECK(worker.Complete(lease).ok());
    CHECK(job.journal.completions.size() == 1);
    CHECK(job.Status().samples_completed() == 10);
    lease.set_split(1);
    CHECK(worker.Train(lease).ok());
    CHECK(job.journal.completions.size() == 2);
    // All of it is done: the lease is over.
    CHECK(absl::IsAborted(worker.Complete(lease)));
    CHECK(job.journal.completions.size() == 2);
  }
  SECTION("what is left of it is given up, and goes back") {
    REQUIRE(worker.Train(lease).ok());
    CompleteRequest request = worker.Completing(lease);
    request.set_abandon(true);
    CHECK(job.coordinator->Complete(request, job.at()).ok());
    CHECK(worker.Acquire().split() == 1);
  }
}

TEST_CASE("in synchronous training a lease is one split, however fast its worker is", "[coordinator]") {
  CoordinatorJob::Options options = CoordinatorJob::SynchronousJob();
  options.lease_target = absl::Seconds(2);
  CoordinatorJob job(options);
  const Worker worker = job.Begin();
  HeartbeatRequest beat = worker.Beat();
  beat.mutable_progress()->set_samples_per_second(10);
  REQUIRE(job.coordinator->Heartbeat(beat, job.at()).ok());
  CHECK(worker.Acquire().splits() == 1);
}

// What is completed before a snapshot would be of a job that has no parameters after a restart, and never
// gets any.
TEST_CASE("nobody holds work of a job that has not begun, whatever a registration says", "[coordinator]") {
  CoordinatorJob job;
  RegisterRequest request = CoordinatorJob::Request("first", 1);
  Lease* claimed = request.add_held();
  claimed->set_lease(7);
  claimed->set_kind(LEASE_TRAIN);
  claimed->set_end(10);
  claimed->set_splits(1);
  const absl::StatusOr<RegisterReply> reply = job.Register(request);
  REQUIRE(reply.ok());
  CHECK(reply->adopted().empty());
  const CoordinatorJob::Worker worker = job.WorkerOf(request, *reply);
  CHECK(absl::IsAborted(worker.Train(*claimed)));
  CHECK(job.journal.completions.empty());
  // A restart asks for the first parameters again.
  CHECK(worker.TryAcquire()->needs_initial_values());
}

TEST_CASE("a lease that another worker holds is not completed", "[coordinator]") {
  CoordinatorJob job;
  const Worker holder = job.Begin("holder", 1);
  const Worker other = job.Join("other", 2);
  const Lease lease = holder.Acquire();
  CHECK(absl::IsAborted(other.Train(lease)));
  CHECK(job.journal.completions.empty());
  CHECK(holder.Train(lease).ok());
}

TEST_CASE("a worker holds so many leases at most", "[coordinator]") {
  CoordinatorJob::Options options = CoordinatorJob::AsynchronousJob();
  options.job.set_data_epochs(100);
  CoordinatorJob job(options);
  RegisterRequest request = CoordinatorJob::Request("w", 1);
  request.set_test_samples(0);  // No evaluation holds the next pass up.
  const Worker worker = job.Join(request);
  job.BringValues(worker);
  for (size_t held = 0; held < limits::kLeasesPerWorkerMax; ++held) {
    REQUIRE(worker.Acquire().kind() == LEASE_TRAIN);
  }
  CHECK(absl::IsResourceExhausted(worker.TryAcquire().status()));
}

TEST_CASE("the evaluation of a pass comes when all of it is trained, and before the next pass",
          "[coordinator]") {
  CoordinatorJob job;
  const Worker worker = job.Begin();
  TrainPass(worker);
  const Lease lease = worker.Acquire();
  REQUIRE(lease.kind() == LEASE_EVAL);
  CHECK(lease.data_epoch() == 1);
  CHECK(job.Status().evaluations_size() == 0);
  REQUIRE(worker.Complete(lease).ok());
  const StatusReply status = job.Status();
  REQUIRE(status.evaluations_size() == 1);
  CHECK(status.evaluations(0).data_epochs() == 1);
  CHECK(status.evaluations(0).accuracy() == 0.5);
  CHECK(status.evaluations(0).loss() == 2);
  CHECK(worker.Acquire().data_epoch() == 1);
}

TEST_CASE("an evaluation that says impossible numbers counts for nothing, and can be said again",
          "[coordinator]") {
  CoordinatorJob job;
  const Worker worker = job.Begin();
  TrainPass(worker);
  const Lease lease = worker.Acquire();
  CompleteRequest request = worker.Completing(lease);
  SECTION("of other samples") { request.mutable_eval()->set_samples(9); }
  SECTION("more are right than there are") { request.mutable_eval()->set_correct(11); }
  SECTION("a measure over nothing") {
    MetricSum* metric = request.mutable_eval()->add_metrics();
    metric->set_name("f1");
    metric->set_sum(1);
  }
  CHECK(absl::IsInvalidArgument(job.coordinator->Complete(request, job.at()).status()));
  CHECK(job.Status().evaluations_size() == 0);
  CHECK(worker.Complete(lease).ok());
  CHECK(job.Status().evaluations_size() == 1);
}

TEST_CASE("an evaluation that is the best so far has a snapshot taken, the job's last aside",
          "[coordinator]") {
  CoordinatorJob::Options options = CoordinatorJob::AsynchronousJob();
  options.job.set_data_epochs(3);
  options.keep_best = BestBy::kAccuracy;
  CoordinatorJob job(options);
  const Worker worker = job.Begin();
  const auto evaluate = [&](uint64_t correct) {
    TrainPass(worker);
    const Lease lease = worker.Acquire();
    CompleteRequest request = worker.Completing(lease);
    request.mutable_eval()->set_correct(correct);
    REQUIRE(job.coordinator->Complete(request, job.at()).ok());
  };
  evaluate(5);
  CHECK(job.snapshots.background == std::vector<std::string>{"best"});
  evaluate(4);
  CHECK(job.snapshots.background.size() == 1);
  evaluate(9);
  CHECK(job.snapshots.background.size() == 1);
  CHECK(job.snapshots.under_way() == "final");
}

TEST_CASE("a worker that is alive and computes nothing loses its leases, and nobody waits for it",
          "[coordinator]") {
  CoordinatorJob job;
  const Worker worker = job.Begin("stuck", 1);
  const Worker other = job.Join("other", 2);
  const Lease lease = worker.Acquire();
  HeartbeatRequest beat = worker.Beat();
  beat.add_leases(lease.lease());
  // Half a second each, many times: then it hangs.
  for (uint64_t batches = 1; batches <= 40; ++batches) {
    beat.mutable_progress()->set_batches(batches);
    REQUIRE(job.coordinator->Heartbeat(beat, job.at()).ok());
    REQUIRE(other.Heartbeat().ok());
    job.PassAndTick(absl::Milliseconds(500));
  }
  CHECK(job.data_plane.active(worker.id()));
  int lost = 0;
  for (int half_seconds = 0; half_seconds < 120 && lost == 0; ++half_seconds) {
    lost = job.coordinator->Heartbeat(beat, job.at())->lost_size();
    REQUIRE(other.Heartbeat().ok());
    job.PassAndTick(absl::Milliseconds(500));
  }
  CHECK(lost == 1);
  CHECK_FALSE(job.data_plane.active(worker.id()));
  CHECK(SameWork(other.Acquire(), lease));
}

TEST_CASE("a worker whose push others wait for cannot hold them for ever by saying that it waits",
          "[coordinator]") {
  CoordinatorJob job;
  const Worker worker = job.Begin();
  HeartbeatRequest beat = TrainedFor20Seconds(&job, worker);
  job.data_plane.awaited_workers = {worker.id()};
  beat.mutable_progress()->set_waiting(true);
  absl::Duration held;
  while (held < absl::Hours(1) && job.coordinator->Heartbeat(beat, job.at())->lost_size() == 0) {
    job.PassAndTick(absl::Milliseconds(500));
    held += absl::Milliseconds(500);
  }
  CHECK(held > ProgressWatch::kWordMax);
  CHECK(held < ProgressWatch::kWordMax + absl::Minutes(2));
}

TEST_CASE("a worker that waits for a server keeps its leases for as long as that takes", "[coordinator]") {
  CoordinatorJob job;
  const Worker worker = job.Begin();
  HeartbeatRequest beat = TrainedFor20Seconds(&job, worker);
  beat.mutable_progress()->set_waiting(true);
  for (int half_seconds = 0; half_seconds < 120; ++half_seconds) {
    REQUIRE(job.coordinator->Heartbeat(beat, job.at())->lost_size() == 0);
    job.PassAndTick(absl::Milliseconds(500));
  }
}

TEST_CASE("synchronous steps do not wait for a worker that has nothing to do", "[coordinator]") {
  CoordinatorJob::Options options = CoordinatorJob::SynchronousJob();
  options.job.set_data_epochs(1);
  CoordinatorJob job(options);
  const Worker one = job.Begin("one", 1);
  const Worker two = job.Join("two", 2);
  const Lease last = two.Acquire();
  for (int split = 0; split < 3; ++split) one.Acquire();
  REQUIRE(two.Train(last).ok());
  CHECK(job.data_plane.active(one.id()));
  CHECK(job.data_plane.active(two.id()));
  CHECK(two.Acquire().kind() == LEASE_NONE);
  CHECK_FALSE(job.data_plane.active(two.id()));
  CHECK(job.data_plane.active(one.id()));
}

TEST_CASE("who asks ahead and gets nothing is waited for as long as it has work", "[coordinator]") {
  CoordinatorJob::Options options = CoordinatorJob::SynchronousJob();
  options.job.set_bound(2);
  options.job.set_data_epochs(1);
  CoordinatorJob job(options);
  const Worker worker = job.Begin();
  std::vector<Lease> leases;
  for (int split = 0; split < 4; ++split) leases.push_back(worker.Acquire());
  CHECK(worker.Acquire().kind() == LEASE_NONE);
  CHECK(job.data_plane.active(worker.id()));
  for (const Lease& lease : leases) REQUIRE(worker.Train(lease).ok());
  REQUIRE(worker.Train(worker.Acquire()).ok());  // The evaluation.
  CHECK(worker.Acquire().kind() == LEASE_NONE);
  CHECK_FALSE(job.data_plane.active(worker.id()));
}

TEST_CASE("a worker that has computed nothing joins steps when it has something to push", "[coordinator]") {
  CoordinatorJob job(CoordinatorJob::SynchronousJob());
  const Worker one = job.Begin("one", 1);
  one.Acquire();
  HeartbeatRequest beat = one.Beat();
  beat.mutable_progress()->set_steps(1);
  REQUIRE(job.coordinator->Heartbeat(beat, job.at()).ok());
  job.data_plane.the_frontier = 6;
  const Worker late = job.Join("late", 2);
  const absl::StatusOr<AcquireReply> reply = late.TryAcquire();
  CHECK(reply->start_step() == 6);
  CHECK(job.data_plane.parked.count(late.id()) == 1);
  RejoinRequest rejoin;
  *rejoin.mutable_identity() = late.identity;
  rejoin.set_next_step(6);
  job.data_plane.the_frontier = 8;
  const absl::StatusOr<RejoinReply> rejoined = job.coordinator->Rejoin(rejoin, job.now);
  REQUIRE(rejoined.ok());
  CHECK(rejoined->step() == 8);
  CHECK(job.data_plane.active(late.id()));
}

TEST_CASE("a push that came too late counts no more when its worker has no lease", "[coordinator]") {
  CoordinatorJob job(CoordinatorJob::SynchronousJob());
  const Worker worker = job.Begin();
  RejoinRequest request;
  *request.mutable_identity() = worker.identity;
  CHECK(absl::IsAborted(job.coordinator->Rejoin(request, job.now).status()));
  worker.Acquire();
  CHECK(job.coordinator->Rejoin(request, job.now).ok());
}

}  // namespace recon
