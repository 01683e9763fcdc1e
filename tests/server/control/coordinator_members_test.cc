// Who is a member: registration, names, heartbeats, departures.

#include "catch2/catch.hpp"
#include "common/base/limits.h"
#include "common/transport/connected_processes.h"
#include "tests/server/control/coordinator_job.h"

namespace recon {
namespace {

using Worker = CoordinatorJob::Worker;

bool Contains(const absl::Status& status, const std::string& words) {
  return std::string(status.message()).find(words) != std::string::npos;
}

MemberState StateOf(CoordinatorJob* job, const Worker& worker) {
  const StatusReply status = job->Status();
  for (const MemberStatus& member : status.members()) {
    if (member.worker() == worker.identity.worker()) return member.state();
  }
  FAIL("there is no worker " << worker.identity.worker());
  return MEMBER_GONE;
}

}  // namespace

TEST_CASE("the first worker's model and data are the job's, and durable before it is told so",
          "[coordinator]") {
  CoordinatorJob job;
  const Worker worker = job.Join("first", 1);
  CHECK(worker.identity.worker() == 1);
  REQUIRE(job.journal.job);
  CHECK(job.journal.job->train_samples() == 40);
  CHECK(job.journal.job->split_samples() == 10);
  CHECK(job.journal.job->seed() == 7);
  CHECK(job.data_plane.layout()->params() == 4);
  CHECK(job.data_plane.admitted.at(worker.id()) == Incarnation(1));
}

TEST_CASE("a worker whose job cannot be made durable is no member, and may try again", "[coordinator]") {
  CoordinatorJob job;
  job.journal.fails = absl::UnavailableError("the disk is full");
  const absl::StatusOr<RegisterReply> refused = job.Register(CoordinatorJob::Request("first", 1));
  CHECK(refused.status() == job.journal.fails);
  CHECK(job.coordinator->workers_alive() == 0);
  CHECK(job.data_plane.admitted.empty());
  job.journal.fails = absl::OkStatus();
  job.Join("first", 1);
  CHECK(job.journal.job);
  CHECK(job.coordinator->workers_alive() == 1);
}

TEST_CASE("a worker that has no number yet is no member when that cannot be saved", "[coordinator]") {
  CoordinatorJob job;
  job.Join("first", 1);
  job.journal.fails = absl::UnavailableError("the disk is full");
  CHECK(job.Register(CoordinatorJob::Request("second", 2)).status() == job.journal.fails);
  CHECK(job.coordinator->workers_alive() == 1);
}

TEST_CASE("a worker with another model or other data is refused, with both numbers", "[coordinator]") {
  CoordinatorJob job;
  job.Join("first", 1);
  RegisterRequest other = CoordinatorJob::Request("second", 2);
  SECTION("of the training data") {
    other.set_train_samples(41);
    const absl::Status refused = job.Register(other).status();
    CHECK(absl::IsInvalidArgument(refused));
    CHECK(Contains(refused, "the worker has 41 training samples, the job has 40"));
  }
  SECTION("of the test data") {
    other.set_test_samples(11);
    CHECK(Contains(job.Register(other).status(), "11 test samples, the job has 10"));
  }
  SECTION("of a tensor's shape") {
    other.mutable_model()->mutable_tensors(0)->set_shape(0, 5);
    CHECK(Contains(job.Register(other).status(), "the job trains another model"));
  }
  CHECK(job.coordinator->workers_alive() == 1);
  CHECK(job.journal.workers.size() == 1);
}

TEST_CASE("a registration beyond the limits is refused before anything is made of it", "[coordinator]") {
  CoordinatorJob job;
  RegisterRequest request = CoordinatorJob::Request("first", 1);
  SECTION("a name that is too long") { request.set_name(std::string(limits::kNameBytesMax + 1, 'n')); }
  SECTION("no process") { request.set_incarnation(0); }
  SECTION("a step that is too high") { request.set_next_step(limits::kStepMax + 1); }
  SECTION("too many leases") {
    for (size_t i = 0; i <= limits::kLeasesPerWorkerMax; ++i) request.add_held();
  }
  CHECK(absl::IsInvalidArgument(job.Register(request).status()));
  CHECK_FALSE(job.journal.job);
}

TEST_CASE("a process that drew its name does not get one that is held", "[coordinator]") {
  CoordinatorJob job;
  const Worker holder = job.Begin("w", 1);
  RegisterRequest request = CoordinatorJob::Request("w", 2);
  request.set_name_is_drawn(true);
  CHECK(absl::IsAlreadyExists(job.Register(request).status()));
  CHECK(holder.Heartbeat().ok());
}

TEST_CASE("a name whose holder is connected is kept until the holder is silent", "[coordinator]") {
  ConnectedProcesses connected;
  CoordinatorJob::Options options = CoordinatorJob::AsynchronousJob();
  options.connected = &connected;
  CoordinatorJob job(options);
  const Worker holder = job.Begin("w", 1);
  connected.Opened(Incarnation(1));
  const absl::Status refused = job.Register(CoordinatorJob::Request("w", 2)).status();
  CHECK(absl::IsAborted(refused));
  CHECK(Contains(refused, "give them two names"));
  // It is suspect now.
  job.Pass(absl::Seconds(2));
  job.Join("w", 2);
  CHECK(absl::IsAlreadyExists(holder.Heartbeat().status()));
}

TEST_CASE("the process that takes a name over gets its holder's work back into the queue", "[coordinator]") {
  CoordinatorJob job;
  const Worker before = job.Begin("w", 1);
  const Lease lease = before.Acquire();
  const Worker after = job.Join("w", 2);
  CHECK(after.id() == before.id());
  CHECK(job.data_plane.admitted.at(after.id()) == Incarnation(2));
  CHECK(absl::IsAlreadyExists(before.Complete(lease)));
  CHECK(SameWork(after.Acquire(), lease));
  CHECK(job.coordinator->workers_alive() == 1);
}

TEST_CASE("calls of another cluster epoch, another process or nobody are told to register", "[coordinator]") {
  CoordinatorJob job;
  const Worker worker = job.Begin();
  Worker other = worker;
  SECTION("an earlier epoch") { other.identity.set_cluster_epoch(0); }
  SECTION("another process") { other.identity.set_incarnation(9); }
  SECTION("a number that nobody has") { other.identity.set_worker(77); }
  CHECK(absl::IsFailedPrecondition(other.Heartbeat().status()));
  CHECK(absl::IsFailedPrecondition(other.TryAcquire().status()));
  CHECK(absl::IsFailedPrecondition(other.Complete(Lease())));
  CHECK(worker.Heartbeat().ok());
}

TEST_CASE("a worker that is not heard of is suspect, then evicted, and its work is another's",
          "[coordinator]") {
  CoordinatorJob job;
  const Worker silent = job.Begin("silent", 1);
  const Worker other = job.Join("other", 2);
  const Lease lease = silent.Acquire();
  job.Pass(absl::Milliseconds(1500));
  REQUIRE(other.Heartbeat().ok());
  job.coordinator->Tick(job.now);
  CHECK(StateOf(&job, silent) == MEMBER_SUSPECT);
  CHECK_FALSE(SameWork(other.Acquire(), lease));
  job.Pass(absl::Milliseconds(1600));
  REQUIRE(other.Heartbeat().ok());
  job.coordinator->Tick(job.now);
  CHECK(StateOf(&job, silent) == MEMBER_GONE);
  CHECK(job.data_plane.admitted.count(silent.id()) == 0);
  CHECK(absl::IsFailedPrecondition(silent.Heartbeat().status()));
  CHECK(SameWork(other.Acquire(), lease));
}

TEST_CASE("an evicted process that registers again is a member under its number", "[coordinator]") {
  CoordinatorJob job;
  const Worker before = job.Begin("w", 1);
  job.PassAndTick(absl::Seconds(4));
  REQUIRE(StateOf(&job, before) == MEMBER_GONE);
  const Worker after = job.Join("w", 1);
  CHECK(after.id() == before.id());
  CHECK(after.Heartbeat().ok());
}

TEST_CASE("who leaves gives back what it holds, and leaves once", "[coordinator]") {
  CoordinatorJob job;
  const Worker leaver = job.Begin("leaver", 1);
  const Worker other = job.Join("other", 2);
  const Lease lease = leaver.Acquire();
  CHECK(leaver.Leave("terminated").ok());
  CHECK(job.coordinator->workers_alive() == 1);
  CHECK(job.data_plane.admitted.count(leaver.id()) == 0);
  CHECK(absl::IsFailedPrecondition(leaver.Leave("terminated")));
  CHECK(SameWork(other.Acquire(), lease));
}

TEST_CASE("a heartbeat that says training diverged is found once, with the worker's name", "[coordinator]") {
  CoordinatorJob job;
  const Worker worker = job.Begin("w", 1);
  CHECK_FALSE(job.coordinator->TakeDivergence());
  HeartbeatRequest beat = worker.Beat();
  beat.mutable_progress()->set_diverged("the loss is nan");
  REQUIRE(job.coordinator->Heartbeat(beat, job.at()).ok());
  const std::optional<DivergenceWatch::Finding> found = job.coordinator->TakeDivergence();
  REQUIRE(found);
  CHECK(found->why.find("worker w") != std::string::npos);
  CHECK(found->since == job.wall);
  CHECK_FALSE(job.coordinator->TakeDivergence());
}

TEST_CASE("a worker that joins is told who hands parameters out: of others, those that have computed",
          "[coordinator]") {
  CoordinatorJob job;
  RegisterRequest giver = CoordinatorJob::Request("giver", 1);
  giver.set_serves_parameters("host-a:7000");
  const Worker worker = job.Join(giver);
  job.BringValues(worker);
  CHECK(job.Register(CoordinatorJob::Request("early", 2))->peers_size() == 0);
  HeartbeatRequest beat = worker.Beat();
  beat.mutable_progress()->set_steps(1);
  REQUIRE(job.coordinator->Heartbeat(beat, job.at()).ok());
  const absl::StatusOr<RegisterReply> reply = job.Register(CoordinatorJob::Request("late", 3));
  REQUIRE(reply->peers_size() == 1);
  CHECK(reply->peers(0) == "host-a:7000");
  CHECK(job.Register(giver)->peers_size() == 0);
}

TEST_CASE("a process that registers again is waited for as before, if it has computed", "[coordinator]") {
  CoordinatorJob job(CoordinatorJob::SynchronousJob());
  const Worker other = job.Begin("other", 1);
  job.Join("again", 2);
  HeartbeatRequest beat = other.Beat();
  beat.mutable_progress()->set_steps(1);
  REQUIRE(job.coordinator->Heartbeat(beat, job.at()).ok());
  SECTION("it has") {
    const Worker again = job.Join("again", 2);
    HeartbeatRequest computed = again.Beat();
    computed.mutable_progress()->set_steps(1);
    REQUIRE(job.coordinator->Heartbeat(computed, job.at()).ok());
    const Worker renewed = job.Join("again", 2);
    job.data_plane.Deactivate(renewed.id());
    renewed.Acquire();
    CHECK(job.data_plane.active(renewed.id()));
  }
  SECTION("another process of that name has not") {
    const Worker again = job.Join("again", 3);
    again.Acquire();
    CHECK(job.data_plane.parked.count(again.id()) == 1);
  }
}

TEST_CASE("a worker begins at the step that is open, or at its own where nobody waits for others",
          "[coordinator]") {
  SECTION("synchronous") {
    CoordinatorJob job(CoordinatorJob::SynchronousJob());
    job.data_plane.the_frontier = 6;
    CHECK(job.Register(CoordinatorJob::Request("w", 1))->start_step() == 6);
  }
  SECTION("asynchronous") {
    CoordinatorJob job;
    job.data_plane.the_frontier = 6;
    RegisterRequest request = CoordinatorJob::Request("w", 1);
    request.set_next_step(3);
    CHECK(job.Register(request)->start_step() == 3);
  }
}

TEST_CASE("a synchronous job follows a worker beyond its reach only, and nowhere near the last step",
          "[coordinator]") {
  CoordinatorJob job(CoordinatorJob::SynchronousJob());
  job.Begin("one", 1);
  job.data_plane.the_frontier = 5;
  RegisterRequest far = CoordinatorJob::Request("far", 2);
  SECTION("what it may be ahead") {
    far.set_first_new_step(5 + limits::kStepsAheadMax);
    CHECK(job.Register(far)->cluster_epoch() == 1);
    CHECK(job.data_plane.frontier() == 5);
  }
  SECTION("one step more") {
    far.set_first_new_step(6 + limits::kStepsAheadMax);
    CHECK(job.Register(far)->cluster_epoch() == 2);
    CHECK(job.data_plane.frontier() == 6 + limits::kStepsAheadMax);
  }
  SECTION("so far that steps would end") {
    far.set_first_new_step(limits::kStepMax / 2);
    CHECK(absl::IsInvalidArgument(job.Register(far).status()));
    CHECK(job.data_plane.frontier() == 5);
  }
}

TEST_CASE("what the first worker's script asks for is taken once, before the job begins", "[coordinator]") {
  CoordinatorJob::Options options = CoordinatorJob::AsynchronousJob();
  int asked = 0;
  options.adopt_proposal = [&](const RegisterRequest&) {
    ++asked;
    return absl::UnavailableError("the server begins anew");
  };
  CoordinatorJob job(options);
  RegisterRequest request = CoordinatorJob::Request("w", 1);
  FlagValue* flag = request.add_proposed();
  flag->set_name("seed");
  flag->set_value("9");
  SECTION("the job has not begun") {
    CHECK(absl::IsUnavailable(job.Register(request).status()));
    CHECK(asked == 1);
    CHECK_FALSE(job.journal.job);
  }
  SECTION("it has begun") {
    job.Join("first", 2);
    CHECK(job.Register(request).ok());
    CHECK(asked == 0);
  }
}

TEST_CASE("who leaves while its encoder keeps values back is counted, unless it has finished",
          "[coordinator]") {
  CoordinatorJob job;
  const Worker worker = job.Begin("w", 1);
  prometheus::Counter& lost =
      job.metrics.Counter("recon_server_residuals_lost_total",
                          "Workers that went, or were given up, with gradient values kept back");
  LeaveRequest request;
  *request.mutable_identity() = worker.identity;
  request.set_residual_norm(0.5);
  SECTION("it has finished") {
    request.set_reason("finished");
    REQUIRE(job.coordinator->Leave(request, job.at()).ok());
    CHECK(lost.Value() == 0);
  }
  SECTION("it was stopped") {
    request.set_reason("terminated");
    REQUIRE(job.coordinator->Leave(request, job.at()).ok());
    CHECK(lost.Value() == 1);
  }
  SECTION("it is replaced") {
    HeartbeatRequest beat = worker.Beat();
    beat.mutable_progress()->set_residual_norm(0.5);
    REQUIRE(job.coordinator->Heartbeat(beat, job.at()).ok());
    job.Join("w", 2);
    CHECK(lost.Value() == 1);
  }
}

}  // namespace recon
