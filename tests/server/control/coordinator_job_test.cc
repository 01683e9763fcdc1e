// When a job starts and ends, how it goes on after a restart, by another policy and with other servers.

#include "tests/server/control/coordinator_job.h"
#include "catch2/catch.hpp"

namespace recon {
namespace {

using Worker = CoordinatorJob::Worker;

void TrainAll(const Worker& worker) {
  for (Lease lease = worker.Acquire(); lease.kind() != LEASE_NONE; lease = worker.Acquire()) {
    REQUIRE(worker.Train(lease).ok());
  }
}

SetPolicyRequest PolicyOf(const std::string& sync) {
  SetPolicyRequest request;
  request.mutable_policy()->set_sync(sync);
  return request;
}

}  // namespace

TEST_CASE("initial values are asked of one worker, and of another when that one is gone", "[coordinator]") {
  CoordinatorJob job;
  const Worker one = job.Join("one", 1);
  const Worker two = job.Join("two", 2);
  CHECK(one.TryAcquire()->needs_initial_values());
  CHECK(job.data_plane.initializer == one.id());
  CHECK_FALSE(two.TryAcquire()->needs_initial_values());
  CHECK(one.TryAcquire()->needs_initial_values());
  CHECK(job.data_plane.times_awaited == 1);  // What has come of them stays.
  REQUIRE(one.Leave("terminated").ok());
  CHECK(two.TryAcquire()->needs_initial_values());
  CHECK(job.data_plane.initializer == two.id());
}

TEST_CASE("no work is given out before there is a snapshot of the initial values", "[coordinator]") {
  CoordinatorJob job;
  const Worker worker = job.Join("w", 1);
  REQUIRE(worker.TryAcquire()->needs_initial_values());
  job.data_plane.BringValues();
  CHECK(job.phase() == PHASE_WAITING);
  CHECK(worker.Acquire().kind() == LEASE_NONE);
  SECTION("it is published") {
    job.snapshots.Publish(job.now);
    CHECK(job.phase() == PHASE_RUNNING);
    CHECK(worker.Acquire().kind() == LEASE_TRAIN);
  }
  SECTION("it fails, and is tried again after two seconds") {
    job.snapshots.Fail(job.now);
    CHECK(worker.Acquire().kind() == LEASE_NONE);
    job.PassAndTick(absl::Milliseconds(1900));
    CHECK(job.snapshots.under_way().empty());
    job.PassAndTick(absl::Milliseconds(200));
    REQUIRE(job.snapshots.under_way() == "initial");
    job.snapshots.Publish(job.now);
    CHECK(worker.Acquire().kind() == LEASE_TRAIN);
  }
}

TEST_CASE("the job starts when enough workers are there, and its first step waits for all of them",
          "[coordinator]") {
  CoordinatorJob::Options options = CoordinatorJob::SynchronousJob();
  options.job.set_workers_min(2);
  CoordinatorJob job(options);
  const Worker one = job.Begin("one", 1);
  CHECK(job.phase() == PHASE_WAITING);
  CHECK(one.Acquire().kind() == LEASE_NONE);
  CHECK_FALSE(job.data_plane.active(one.id()));
  const Worker two = job.Join("two", 2);
  CHECK(job.phase() == PHASE_RUNNING);
  CHECK(job.data_plane.active(one.id()));
  CHECK(job.data_plane.active(two.id()));
}

TEST_CASE("the job is finished when its last snapshot is published", "[coordinator]") {
  CoordinatorJob job;
  const Worker worker = job.Begin();
  TrainAll(worker);
  CHECK(job.journal.completions.size() == 2 * 5);
  REQUIRE(job.snapshots.under_way() == "final");
  CHECK_FALSE(job.coordinator->finished());
  SECTION("it is") {
    job.snapshots.Publish(job.now);
    CHECK(job.coordinator->finished());
    CHECK(job.phase() == PHASE_FINISHED);
    CHECK(worker.TryAcquire()->phase() == PHASE_FINISHED);
  }
  SECTION("it fails, and is tried again after two seconds") {
    job.snapshots.Fail(job.now);
    CHECK_FALSE(job.coordinator->finished());
    job.Pass(absl::Milliseconds(1900));
    REQUIRE(worker.Heartbeat().ok());
    job.coordinator->Tick(job.now);
    CHECK(job.snapshots.under_way().empty());
    job.PassAndTick(absl::Milliseconds(200));
    REQUIRE(job.snapshots.under_way() == "final");
    job.snapshots.Publish(job.now);
    CHECK(job.coordinator->finished());
  }
}

TEST_CASE("the server ends when the workers have heard of the job's end, or some time after",
          "[coordinator]") {
  CoordinatorJob job;
  const Worker worker = job.Begin();
  TrainAll(worker);
  job.snapshots.Publish(job.now);
  const absl::Duration grace = absl::Seconds(3);
  CHECK_FALSE(job.coordinator->DoneAndQuiet(job.now, grace));
  SECTION("they have left") {
    REQUIRE(worker.Leave().ok());
    CHECK_FALSE(job.coordinator->DoneAndQuiet(job.now, grace));
    CHECK(job.coordinator->DoneAndQuiet(job.now + absl::Seconds(1), grace));
  }
  SECTION("one does not leave") {
    CHECK_FALSE(job.coordinator->DoneAndQuiet(job.now + absl::Seconds(3), grace));
    CHECK(job.coordinator->DoneAndQuiet(job.now + absl::Milliseconds(3001), grace));
  }
}

TEST_CASE("a server that drains gives out nothing, and takes what is completed", "[coordinator]") {
  CoordinatorJob job;
  const Worker worker = job.Begin();
  const Lease lease = worker.Acquire();
  job.coordinator->BeginDrain();
  CHECK(worker.TryAcquire()->phase() == PHASE_DRAINING);
  CHECK(worker.Acquire().kind() == LEASE_NONE);
  CHECK(worker.Train(lease).ok());
  CHECK(job.journal.completions.size() == 1);
}

TEST_CASE("after a restart a worker goes on with its lease, and nobody else gets work for a second",
          "[coordinator]") {
  CoordinatorJob job;
  const Worker before = job.Begin("w", 1);
  REQUIRE(before.Train(before.Acquire()).ok());
  const Lease lease = before.Acquire();
  REQUIRE(job.Restart() == absl::OkStatus());
  CHECK(absl::IsFailedPrecondition(before.Heartbeat().status()));
  const Worker other = job.Join("other", 2);
  CHECK(other.Acquire().kind() == LEASE_NONE);
  RegisterRequest again = CoordinatorJob::Request("w", 1);
  *again.add_held() = lease;
  const absl::StatusOr<RegisterReply> reply = job.Register(again);
  REQUIRE(reply->adopted_size() == 1);
  CHECK(SameWork(reply->adopted(0), lease));
  CHECK(reply->adopted(0).lease() != lease.lease());
  job.Pass(absl::Seconds(1));
  // The first split is done, the second is held.
  CHECK(other.Acquire().split() == 2);
  // What was pushed for it went to the server before.
  CHECK(job.WorkerOf(again, *reply).Complete(reply->adopted(0)).ok());
}

TEST_CASE("a lease of before a rollback is not adopted", "[coordinator]") {
  CoordinatorJob job;
  const Worker before = job.Begin("w", 1);
  RegisterRequest again = CoordinatorJob::Request("w", 1);
  *again.add_held() = before.Acquire();
  again.set_history(0);
  CHECK(job.Register(again)->adopted_size() == 1);
  job.options.job.set_history(1);
  REQUIRE(job.Restart() == absl::OkStatus());
  CHECK(job.Register(again)->adopted_size() == 0);
  again.set_history(1);
  CHECK(job.Register(again)->adopted_size() == 1);
}

TEST_CASE("a data directory is taken up only with the flags that its job was started with", "[coordinator]") {
  CoordinatorJob job;
  const Worker worker = job.Begin();
  TrainAll(worker);
  std::string words;
  SECTION("--split-samples") {
    job.options.job.set_split_samples(20);
    words = "--split-samples is 20, this job was started with 10";
  }
  SECTION("--seed") {
    job.options.job.set_seed(8);
    words = "--seed is 8, this job was started with 7";
  }
  SECTION("--data-epochs") {
    job.options.job.set_data_epochs(1);
    words = "was --data-epochs lowered?";
  }
  SECTION("the job's record is gone") {
    job.journal.job.reset();
    words = "10 splits are completed, but nothing says of what job";
  }
  const absl::Status refused = job.Restart();
  CHECK(absl::IsFailedPrecondition(refused));
  CHECK(std::string(refused.message()).find(words) != std::string::npos);
}

TEST_CASE("another policy begins a cluster epoch, is told to all and outlives the server", "[coordinator]") {
  CoordinatorJob job;
  const Worker worker = job.Begin("w", 1);
  const absl::StatusOr<SetPolicyReply> reply = job.coordinator->SetPolicy(PolicyOf("ssp:4"), job.now);
  REQUIRE(reply.ok());
  CHECK(reply->cluster_epoch() == 2);
  CHECK(reply->job().bound() == 4);
  CHECK(job.data_plane.rules().bound == 4);
  CHECK(job.data_plane.cluster_epoch == 2);
  CHECK(absl::IsFailedPrecondition(worker.Heartbeat().status()));
  const absl::StatusOr<RegisterReply> told = job.Register(CoordinatorJob::Request("w", 1));
  CHECK(told->job().bound() == 4);
  CHECK(told->cluster_epoch() == 2);
  REQUIRE(job.journal.policy);
  CHECK(job.journal.policy->set().sync() == "ssp:4");
}

TEST_CASE("a policy that cannot be had changes nothing", "[coordinator]") {
  CoordinatorJob job;
  const Worker worker = job.Begin();
  absl::StatusCode code = absl::StatusCode::kOk;
  std::string sync = "bsp";
  SECTION("it means nothing") {
    sync = "sometimes";
    code = absl::StatusCode::kInvalidArgument;
  }
  SECTION("the data plane has not what it takes") {
    job.data_plane.change_fails = absl::FailedPreconditionError("the optimizer's state is not kept");
    code = absl::StatusCode::kFailedPrecondition;
  }
  SECTION("no epoch can be had for it") {
    job.journal.fails = absl::UnavailableError("the disk is full");
    code = absl::StatusCode::kUnavailable;
  }
  SECTION("the job is at its end") {
    job.coordinator->BeginDrain();
    code = absl::StatusCode::kFailedPrecondition;
  }
  CHECK(job.coordinator->SetPolicy(PolicyOf(sync), job.now).status().code() == code);
  CHECK(job.Status().cluster_epoch() == 1);
  CHECK(job.Status().job().bound() == -1);
  CHECK_FALSE(job.journal.policy);
  CHECK(worker.Heartbeat().ok());
}

TEST_CASE("nobody is evicted for the time in which the policy was changed", "[coordinator]") {
  const bool fails = GENERATE(false, true);
  CoordinatorJob job;
  job.Begin();
  if (fails) job.data_plane.change_fails = absl::UnavailableError("pushes do not come to an end");
  job.data_plane.change_takes = absl::Seconds(40);
  CHECK(job.coordinator->SetPolicy(PolicyOf("bsp"), job.now).ok() == !fails);
  job.Pass(absl::Seconds(40));
  job.PassAndTick(absl::Seconds(2));
  CHECK(job.coordinator->workers_alive() == 1);
  job.PassAndTick(absl::Seconds(2));
  CHECK(job.coordinator->workers_alive() == 0);
}

TEST_CASE("a quorum and a step's samples are as the policy says", "[coordinator]") {
  CoordinatorJob job(CoordinatorJob::SynchronousJob());
  const Worker one = job.Begin("one", 1);
  job.Join("two", 2);
  SetPolicyRequest request = PolicyOf("bsp");
  request.mutable_policy()->set_quorum(1);
  REQUIRE(job.coordinator->SetPolicy(request, job.now).ok());
  CHECK(job.data_plane.quorum == 1);
  request.mutable_policy()->set_quorum(0);
  request.mutable_policy()->set_step_samples_constant(true);
  REQUIRE(job.coordinator->SetPolicy(request, job.now).ok());
  CHECK(job.data_plane.quorum == 0);
  // Two workers with batches of five: that stays, with one worker, too.
  CHECK(job.journal.job->step_samples() == 10);
  const Worker again = job.Join("one", 1);
  CHECK(again.Heartbeat()->push_batches() == 1);
  job.Pass(absl::Seconds(2));
  REQUIRE(again.Heartbeat().ok());
  job.PassAndTick(absl::Seconds(2));
  REQUIRE(job.coordinator->workers_alive() == 1);
  CHECK(again.Heartbeat()->push_batches() == 2);
}

TEST_CASE("a synchronous job goes on from the step of a worker that is far beyond it", "[coordinator]") {
  CoordinatorJob job(CoordinatorJob::SynchronousJob());
  job.Begin("one", 1);
  RegisterRequest far = CoordinatorJob::Request("far", 2);
  far.set_next_step(1000);
  const absl::StatusOr<RegisterReply> reply = job.Register(far);
  REQUIRE(reply.ok());
  CHECK(job.data_plane.frontier() == 1000);
  CHECK(reply->cluster_epoch() == 2);
  CHECK(reply->start_step() == 1000);
}

TEST_CASE("workers are told who is missing until all servers are there", "[coordinator]") {
  CoordinatorJob job(CoordinatorJob::AsynchronousJob(), /*with_others=*/true);
  const absl::Status refused = job.Register(CoordinatorJob::Request("w", 1)).status();
  CHECK(absl::IsUnavailable(refused));
  CHECK(refused.message() == "the job waits for server 2, which is away");
  CHECK(job.others.models == std::vector<std::string>{"model"});

  job.others.the_state.complete = true;
  job.others.the_state.highest_epoch = 7;
  SECTION("they begin an epoch that none of them has seen") {
    job.coordinator->OnServersChanged(job.now);
    CHECK(job.others.epochs == std::vector<uint64_t>{8});
    CHECK(job.data_plane.cluster_epoch == 8);
    const Worker worker = job.Join("w", 1);
    CHECK(worker.identity.cluster_epoch() == 8);
    CHECK(job.others.admitted.count(worker.id()) == 1);
    REQUIRE(worker.TryAcquire()->needs_initial_values());
    CHECK(job.others.initializers == std::vector<WorkerId>{worker.id()});
    REQUIRE(worker.Leave("terminated").ok());
    CHECK(job.others.admitted.empty());
  }
  SECTION("the epoch cannot be saved: it is tried again after two seconds") {
    job.journal.fails = absl::UnavailableError("the disk is full");
    job.coordinator->OnServersChanged(job.now);
    CHECK(job.others.epochs.empty());
    job.journal.fails = absl::OkStatus();
    job.PassAndTick(absl::Milliseconds(1900));
    CHECK(job.others.epochs.empty());
    job.PassAndTick(absl::Milliseconds(200));
    CHECK(job.others.epochs == std::vector<uint64_t>{8});
  }
}

TEST_CASE("with other servers a job has begun when all of them have values", "[coordinator]") {
  CoordinatorJob job(CoordinatorJob::SynchronousJob(), /*with_others=*/true);
  job.others.the_state.complete = true;
  job.others.the_state.highest_frontier = 5;
  job.coordinator->OnServersChanged(job.now);
  // Another server has closed more steps than one more than this one knows of.
  CHECK(job.data_plane.frontier() == 5);
  const Worker worker = job.Join("w", 1);
  REQUIRE(worker.TryAcquire()->needs_initial_values());
  job.data_plane.BringValues();
  CHECK(job.snapshots.under_way().empty());
  CHECK(worker.Acquire().kind() == LEASE_NONE);
  job.others.the_state.all_have_values = true;
  job.coordinator->OnServersChanged(job.now);
  REQUIRE(job.snapshots.under_way() == "initial");
  job.snapshots.Publish(job.now);
  CHECK(worker.Acquire().kind() == LEASE_TRAIN);
}

TEST_CASE("a head that begins anew goes on from where the other servers are, with a bound above 0, too",
          "[coordinator]") {
  struct Case {
    int bound;
    uint64_t others;    // Where they are.
    uint64_t frontier;  // Of a head that has come to 5.
  };
  // The other servers of a synchronous job may have closed a step that is still open for this one's shards.
  for (const Case& c : {Case{0, 6, 5}, Case{0, 9, 9}, Case{2, 5, 5}, Case{2, 6, 6}, Case{2, 900, 900},
                        Case{2, 3, 5}, Case{-1, 9, 5}}) {
    INFO("bound " << c.bound << ", the others are at " << c.others);
    CoordinatorJob::Options options = CoordinatorJob::AsynchronousJob();
    options.job.set_bound(c.bound);
    CoordinatorJob job(options, /*with_others=*/true);
    job.data_plane.the_frontier = 5;
    job.others.the_state.complete = true;
    job.others.the_state.highest_frontier = c.others;
    job.coordinator->OnServersChanged(job.now);
    CHECK(job.data_plane.frontier() == c.frontier);
  }
}

TEST_CASE("a server that begins a new log has a snapshot first, when all are there", "[coordinator]") {
  CoordinatorJob job(CoordinatorJob::AsynchronousJob(), /*with_others=*/true);
  job.snapshots.the_status.set_generation(3);
  job.data_plane.BringValues();
  job.others.the_state.all_have_values = true;
  SECTION("this one") { job.coordinator->RequireSnapshot(); }
  SECTION("another one") { job.others.the_state.needs_snapshot = true; }
  job.coordinator->OnServersChanged(job.now);
  CHECK(job.snapshots.under_way().empty());
  job.others.the_state.complete = true;
  job.coordinator->OnServersChanged(job.now);
  CHECK(job.snapshots.under_way() == "recovered");
}

TEST_CASE("parameters that are not finite are a divergence, told once with worker, step and tensor",
          "[coordinator]") {
  CoordinatorJob job;
  const Worker worker = job.Begin("w", 1);
  job.PassAndTick(absl::Seconds(1));
  CHECK_FALSE(job.coordinator->TakeDivergence());
  job.data_plane.non_finite = NonFiniteUpdate{worker.id(), 17, true, "layer0.weight", job.wall};
  job.PassAndTick(absl::Seconds(1));
  const auto found = job.coordinator->TakeDivergence();
  REQUIRE(found);
  CHECK(found->why ==
        "parameters are not finite, after the large gradient of worker w at step 17: the first is in "
        "layer0.weight");
  CHECK(found->since == job.wall - absl::Seconds(1));
  // Another sign comes between: the first is not told again.
  HeartbeatRequest beat = worker.Beat();
  beat.mutable_progress()->set_diverged("values do not stay finite");
  REQUIRE(job.coordinator->Heartbeat(beat, job.at()).ok());
  CHECK(job.coordinator->TakeDivergence());
  for (int second = 0; second < 3; ++second) {
    job.PassAndTick(absl::Seconds(1));
    CHECK_FALSE(job.coordinator->TakeDivergence());
  }
  // Of a worker that is nobody's any more.
  job.data_plane.non_finite = NonFiniteUpdate{WorkerId(77), 18, false, "layer0.bias", job.wall};
  job.PassAndTick(absl::Seconds(1));
  CHECK(job.coordinator->TakeDivergence()->why.find("worker number 77 at step 18") != std::string::npos);
}

TEST_CASE("what the push log takes on the disk, and may take, is in the status and in the metrics",
          "[coordinator]") {
  CoordinatorJob job;
  job.data_plane.log.disk_bytes = 12'345;
  job.data_plane.log.budget_bytes = 67'890;
  job.PassAndTick(absl::Seconds(1));
  CHECK(job.Status().log_bytes() == 12'345);
  CHECK(job.Status().log_budget_bytes() == 67'890);
  CHECK(job.metrics.Text().find("recon_server_log_bytes 12345\n") != std::string::npos);
  CHECK(job.metrics.Text().find("recon_server_log_budget_bytes 67890\n") != std::string::npos);
}

}  // namespace recon
