#include "absl/strings/match.h"
#include "tests/server/control/coordinator_job.h"

namespace recon {
namespace {

// A job whose workers have the optimizer; its model has a gradient, and the state of one parameter.
struct MeansJob : CoordinatorJob {
  MeansJob() : CoordinatorJob(Options()) {}
  static CoordinatorJob::Options Options() {
    CoordinatorJob::Options options = SynchronousJob();
    options.job.set_means(true);
    return options;
  }
  static RegisterRequest Request(const std::string& name, uint64_t incarnation) {
    RegisterRequest request = CoordinatorJob::Request(name, incarnation);
    TensorSpec* state = request.mutable_model()->add_tensors();
    state->set_name("state");
    state->add_shape(4);
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

}  // namespace recon
