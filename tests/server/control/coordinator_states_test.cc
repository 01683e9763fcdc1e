#include "absl/strings/match.h"
#include "tests/server/control/coordinator_job.h"

namespace recon {
namespace {

// A job whose workers have the optimizer; its model has a gradient, and a state of three shards: with other
// servers each has some of it.
struct MeansJob : CoordinatorJob {
  explicit MeansJob(bool with_others = false) : CoordinatorJob(Options(), with_others) {}
  static CoordinatorJob::Options Options() {
    CoordinatorJob::Options options = SynchronousJob();
    options.job.set_means(true);
    return options;
  }
  static RegisterRequest Request(const std::string& name, uint64_t incarnation) {
    RegisterRequest request = CoordinatorJob::Request(name, incarnation);
    TensorSpec* state = request.mutable_model()->add_tensors();
    state->set_name("state");
    state->add_shape(3 * kShardParamsMax);
    state->set_group(kStateGroup);
    state->set_averaged(true);
    return request;
  }
  Worker JoinMeans(const std::string& name, uint64_t incarnation) { return Join(Request(name, incarnation)); }
  // Asks for work, having the state before `next`, or waiting for one.
  AcquireReply Ask(const Worker& worker, std::optional<uint64_t> next,
                   std::optional<uint64_t> waits_for = std::nullopt) {
    AcquireRequest request;
    *request.mutable_identity() = worker.identity;
    if (next) request.mutable_state()->set_next(*next + 1);
    if (waits_for) request.mutable_state()->set_waits_for(*waits_for);
    return *coordinator->Acquire(request, now);
  }
};

}  // namespace

TEST_CASE("a worker that leaves the optimizer to the server is refused where workers have it",
          "[coordinator][states]") {
  MeansJob job;
  const absl::Status refused = job.Register(CoordinatorJob::Request("w", 1)).status();
  CHECK(absl::IsInvalidArgument(refused));
  CHECK(absl::StrContains(refused.message(), "optimizer_on='workers'"));
}

TEST_CASE("the first worker has the state that it brought, and others get theirs from it",
          "[coordinator][states]") {
  MeansJob job;
  const CoordinatorJob::Worker first = job.JoinMeans("first", 1);
  job.BringValues(first);
  CHECK_FALSE(job.Ask(first, std::nullopt, 0).has_lease());
  CHECK(job.Ask(first, std::nullopt, 0).state().take());
  const AcquireReply work = job.Ask(first, 0);
  REQUIRE(work.lease().kind() == LEASE_TRAIN);
  CHECK(work.state().data_epoch() == 0);
  job.data_plane.the_frontier = 3;
  const CoordinatorJob::Worker second = job.JoinMeans("second", 2);
  // Who waits for the state gets no work, and the first worker is asked for it.
  const AcquireReply waits = job.Ask(second, std::nullopt, 3);
  CHECK_FALSE(waits.has_lease());
  CHECK_FALSE(waits.state().take());
  CHECK(waits.state().frontier() == 3);
  HeartbeatRequest beat = first.Beat();
  beat.mutable_state()->set_next(3 + 1);
  CHECK(job.coordinator->Heartbeat(beat, job.at())->state().wanted());
  CHECK(job.data_plane.state_asked_of == first.id());
  job.data_plane.BringState(3, job.now);
  CHECK(job.Ask(second, std::nullopt, 3).state().uploaded() == 3);
  // It counts for completions once a snapshot has it.
  CHECK(job.Ask(first, 3).state().saved() == 0);
  REQUIRE(job.snapshots.under_way() == "state");
  job.snapshots.Publish(job.now);
  CHECK(job.Ask(first, 3).state().saved() == 3);
  CHECK(job.Ask(second, 3).lease().kind() == LEASE_TRAIN);
}

TEST_CASE("the server's state counts again when all workers with a newer one are gone",
          "[coordinator][states]") {
  MeansJob job;
  const CoordinatorJob::Worker first = job.JoinMeans("first", 1);
  job.BringValues(first);
  REQUIRE(job.Ask(first, std::nullopt, 0).state().take());
  job.data_plane.the_frontier = 5;
  const CoordinatorJob::Worker second = job.JoinMeans("second", 2);
  CHECK_FALSE(job.Ask(second, std::nullopt, 5).state().take());
  job.Pass(absl::Seconds(2));
  CHECK_FALSE(job.Ask(second, std::nullopt, 5).state().take());
  job.PassAndTick(absl::Seconds(2));  // The first has been silent for too long.
  const AcquireReply reply = job.Ask(second, std::nullopt, 5);
  CHECK(reply.state().take());
  CHECK(reply.state().frontier() == 5);
}

TEST_CASE("a pass begins when all of the one before is done, at a step that everybody is told",
          "[coordinator][states]") {
  MeansJob job;
  const CoordinatorJob::Worker worker = job.JoinMeans("w", 1);
  job.BringValues(worker);
  REQUIRE(job.Ask(worker, std::nullopt, 0).state().take());
  std::vector<Lease> leases;
  for (int split = 0; split < 4; ++split) leases.push_back(job.Ask(worker, 0).lease());
  CHECK(leases.back().data_epoch() == 0);
  CHECK(job.Ask(worker, 0).lease().kind() == LEASE_NONE);
  for (const Lease& lease : leases) REQUIRE(worker.Train(lease) == absl::OkStatus());
  const Lease evaluation = job.Ask(worker, 4).lease();
  REQUIRE(evaluation.kind() == LEASE_EVAL);
  CHECK(job.Ask(worker, 4).lease().kind() == LEASE_NONE);
  REQUIRE(worker.Complete(evaluation) == absl::OkStatus());
  job.data_plane.the_frontier = 4;
  const AcquireReply next = job.Ask(worker, 4);
  CHECK(next.lease().data_epoch() == 1);
  job.data_plane.the_frontier = 6;
  const WorkerStateReply said = job.Ask(worker, 6).state();
  CHECK(said.data_epoch() == 1);
  CHECK(said.data_epoch_begins() == 4);
}

namespace {

// The same on three servers, with a worker that is asked for its state before step 3.
struct MeansOnThreeServers : MeansJob {
  MeansOnThreeServers() : MeansJob(/*with_others=*/true) {
    others.the_state.complete = true;
    others.the_state.places.resize(2);
    coordinator->OnServersChanged(now);
    first = JoinMeans("first", 1);
    REQUIRE(first.TryAcquire()->needs_initial_values());
    data_plane.BringValues();
    others.the_state.all_have_values = true;
    coordinator->OnServersChanged(now);
    snapshots.Publish(now);
    REQUIRE(Ask(first, std::nullopt, 0).state().take());
    data_plane.the_frontier = 3;
    REQUIRE(Ask(first, 3).state().wanted() != 0);
    upload = data_plane.upload_asked_for;
    CHECK(others.upload_asked_for == upload);
    staged = others.state_staged;
  }
  // Servers come back, with these states of the workers.
  void BeginEpoch(uint64_t one, uint64_t two) {
    others.the_state.live = false;
    others.the_state.places[0].state_version = one;
    others.the_state.places[1].state_version = two;
    coordinator->OnServersChanged(now);
    first = JoinMeans("first", 1);
  }
  Worker first;
  uint64_t upload = 0;
  std::function<void(uint32_t server, uint64_t step, absl::Time now)> staged;  // Of that upload.
};

}  // namespace

TEST_CASE("a state is the servers' when each of them has its part", "[coordinator][states]") {
  MeansOnThreeServers job;
  job.staged(2, 3, job.now);
  job.data_plane.BringState(3, job.now);
  CHECK(job.data_plane.the_state_version == 0);
  CHECK(job.snapshots.under_way().empty());
  SECTION("the last part comes") {
    job.staged(1, 3, job.now);
    CHECK(job.data_plane.the_state_version == job.upload);
    CHECK(job.Ask(job.first, 3).state().uploaded() == 3);
    REQUIRE(job.snapshots.under_way() == "state");
    SECTION("and is saved by a second try") {
      job.snapshots.Fail(job.now);
      CHECK(job.snapshots.under_way().empty());
      job.Pass(JobLifecycle::kSnapshotRetry);
      CHECK(job.Ask(job.first, 3).state().saved() == 0);
      REQUIRE(job.snapshots.under_way() == "state");
    }
    job.snapshots.Publish(job.now);
    CHECK(job.Ask(job.first, 3).state().saved() == 3);
  }
  SECTION("its server has gone: nothing of it counts, and it is asked anew when all are there") {
    job.others.the_state.live = false;
    job.staged(1, 3, job.now);
    CHECK(job.data_plane.the_state_version == 0);
    job.BeginEpoch(0, 0);
    CHECK_FALSE(job.snapshots.restored_as);
    job.staged(1, 3, job.now);
    CHECK(job.data_plane.the_state_version == 0);
    CHECK(job.Ask(job.first, 3).state().wanted() > job.upload);
  }
}

TEST_CASE("where a server comes back with another state of the workers, all go back to the saved one",
          "[coordinator][states]") {
  MeansOnThreeServers job;
  for (const uint32_t server : {1, 2}) job.staged(server, 3, job.now);
  job.data_plane.BringState(3, job.now);
  REQUIRE(job.data_plane.the_state_version == job.upload);
  job.snapshots.Fail(job.now);  // A server has gone meanwhile.
  SECTION("it had the state") {
    job.BeginEpoch(job.upload, job.upload);
    CHECK_FALSE(job.snapshots.restored_as);
    CHECK(job.Ask(job.first, 3).state().uploaded() == 3);
  }
  SECTION("it had the one before") {
    job.BeginEpoch(job.upload, 0);
    REQUIRE(job.snapshots.restored_as);
    CHECK(*job.snapshots.restored_as > job.upload);
    // Meanwhile nobody gets a state, and nobody is asked for one.
    const WorkerStateReply meanwhile = job.Ask(job.first, std::nullopt, 3).state();
    CHECK_FALSE(meanwhile.ready());
    CHECK_FALSE(meanwhile.take());
    CHECK(job.Ask(job.first, 3).state().wanted() == 0);
    SECTION("by a second try") {
      const uint64_t before = *job.snapshots.restored_as;
      job.snapshots.EndRestore(absl::UnavailableError("the store is away"), job.now);
      job.PassAndTick(JobLifecycle::kSnapshotRetry);
      CHECK(*job.snapshots.restored_as > before);
    }
    job.snapshots.EndRestore(absl::OkStatus(), job.now);
    // Who lives has the newer one, and uploads it again.
    const WorkerStateReply after = job.Ask(job.first, 3).state();
    CHECK(after.ready());
    CHECK(after.uploaded() == 0);
    CHECK(after.wanted() > *job.snapshots.restored_as);
  }
}

TEST_CASE("a worker does not bring its state over to a history that the job has gone back to",
          "[coordinator][states]") {
  MeansJob job;
  RegisterRequest request = MeansJob::Request("w", 1);
  request.set_history(1);
  CHECK(job.Register(request).ok());  // It has no state.
  request.mutable_state()->set_next(5);
  CHECK(absl::IsFailedPrecondition(job.Register(request).status()));
  request.set_history(0);
  CHECK(job.Register(request).ok());
}

}  // namespace recon
