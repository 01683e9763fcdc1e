#pragma once

#include <memory>
#include <optional>
#include <string>

#include "catch2/catch.hpp"
#include "common/metrics/metrics.h"
#include "server/control/coordinator.h"
#include "tests/server/control/fake_ports.h"

namespace recon {

// A coordinator whose ports are fakes, and a clock that a test moves. The job: two data epochs of four splits
// of ten samples, an evaluation of ten samples after each; leases last 10 s, silence is suspect after 1 s and
// the end after 3 s.
class CoordinatorJob {
 public:
  using Options = Coordinator::Options;

  static Options AsynchronousJob() {
    Options options;
    options.job.set_seed(7);
    options.job.set_batch_samples(5);
    options.job.set_data_epochs(2);
    options.job.set_split_samples(10);
    options.job.set_eval_split_samples(10);
    options.job.set_bound(-1);
    options.job.set_workers_min(1);
    options.job.set_lease_duration_ms(10'000);
    options.timeouts = {absl::Seconds(1), absl::Seconds(3)};
    options.policy_base.batch_samples = 5;
    return options;
  }
  static Options SynchronousJob() {
    Options options = AsynchronousJob();
    options.job.set_bound(0);
    return options;
  }

  explicit CoordinatorJob(const Options& started_with = AsynchronousJob(), bool with_others = false)
      : options(started_with), with_others_(with_others) {
    StartServer();
  }

  // A new server's process: what is durable is there, what the old one had in memory is gone.
  void StartServer() {
    coordinator.reset();
    data_plane = FakeDataPlane();
    CoordinatorPorts ports;
    ports.params = &data_plane;
    ports.steps = &data_plane;
    ports.snapshots = &snapshots;
    ports.others = with_others_ ? &others : nullptr;
    ports.journal = &journal;
    coordinator = std::make_unique<Coordinator>(options, ports, &metrics);
  }
  // The same from a snapshot, with another cluster epoch.
  absl::Status Restart() {
    options.cluster_epoch = ++journal.epoch;
    StartServer();
    data_plane.BringValues();
    const absl::Status recovered = coordinator->Recover(std::nullopt);
    coordinator->NoteServing(now);
    return recovered;
  }

  Moment at() const { return {now, wall}; }
  void Pass(absl::Duration time) {
    now += time;
    wall += time;
  }
  // The same with ticks of the server and a heartbeat of nobody.
  void PassAndTick(absl::Duration time) {
    Pass(time);
    coordinator->Tick(now);
  }

  static RegisterRequest Request(const std::string& name, uint64_t incarnation) {
    RegisterRequest request;
    request.set_name(name);
    request.set_incarnation(incarnation);
    request.mutable_model()->set_name("model");
    TensorSpec* tensor = request.mutable_model()->add_tensors();
    tensor->set_name("weights");
    tensor->add_shape(4);
    request.set_train_samples(40);
    request.set_test_samples(10);
    return request;
  }

  // A worker's process, and the calls that it makes.
  struct Worker {
    CoordinatorJob* job;
    WorkerIdentity identity;

    WorkerId id() const { return WorkerId(identity.worker()); }
    absl::StatusOr<AcquireReply> TryAcquire(uint64_t next_step = 0) const {
      AcquireRequest request;
      *request.mutable_identity() = identity;
      request.set_next_step(next_step);
      return job->coordinator->Acquire(request, job->now);
    }
    Lease Acquire(uint64_t next_step = 0) const {
      const absl::StatusOr<AcquireReply> reply = TryAcquire(next_step);
      REQUIRE(reply.status() == absl::OkStatus());
      return reply->lease();
    }
    CompleteRequest Completing(const Lease& lease) const {
      CompleteRequest request;
      *request.mutable_identity() = identity;
      request.set_lease(lease.lease());
      request.set_split(lease.split());
      if (lease.kind() == LEASE_EVAL) {
        request.mutable_eval()->set_samples(lease.end() - lease.begin());
        request.mutable_eval()->set_correct(5);
        request.mutable_eval()->set_loss_sum(20);
      }
      return request;
    }
    absl::Status Complete(const Lease& lease) const {
      return job->coordinator->Complete(Completing(lease), job->at()).status();
    }
    // Pushes once, and completes.
    absl::Status Train(const Lease& lease) const {
      if (lease.kind() == LEASE_TRAIN) job->data_plane.Push(id());
      return Complete(lease);
    }
    HeartbeatRequest Beat() const {
      HeartbeatRequest request;
      *request.mutable_identity() = identity;
      return request;
    }
    absl::StatusOr<HeartbeatReply> Heartbeat(const Lease& lease = Lease()) const {
      HeartbeatRequest request = Beat();
      if (lease.lease() != 0) request.add_leases(lease.lease());
      return job->coordinator->Heartbeat(request, job->at());
    }
    absl::Status Leave(const std::string& reason = "finished") const {
      LeaveRequest request;
      *request.mutable_identity() = identity;
      request.set_reason(reason);
      return job->coordinator->Leave(request, job->at()).status();
    }
  };

  absl::StatusOr<RegisterReply> Register(const RegisterRequest& request, const std::string& peer = "here") {
    return coordinator->Register(request, now, peer);
  }
  Worker Join(const RegisterRequest& request) {
    const absl::StatusOr<RegisterReply> reply = Register(request);
    REQUIRE(reply.status() == absl::OkStatus());
    return WorkerOf(request, *reply);
  }
  Worker Join(const std::string& name, uint64_t incarnation) { return Join(Request(name, incarnation)); }
  Worker WorkerOf(const RegisterRequest& request, const RegisterReply& reply) {
    Worker worker{this, {}};
    worker.identity.set_worker(reply.worker());
    worker.identity.set_incarnation(request.incarnation());
    worker.identity.set_cluster_epoch(reply.cluster_epoch());
    return worker;
  }
  // The job's first worker joins and brings the initial values, and their snapshot is published.
  Worker Begin(const std::string& name = "first", uint64_t incarnation = 1) {
    const Worker worker = Join(name, incarnation);
    BringValues(worker);
    return worker;
  }
  void BringValues(const Worker& worker) {
    REQUIRE(worker.TryAcquire()->needs_initial_values());
    data_plane.BringValues();
    REQUIRE(snapshots.under_way() == "initial");
    snapshots.Publish(now);
  }
  StatusReply Status() { return *coordinator->Status(now); }
  JobPhase phase() { return Status().phase(); }

  Options options;
  absl::Time now = absl::UnixEpoch() + absl::Hours(1);
  absl::Time wall = absl::FromUnixSeconds(1'700'000'000);
  FakeDataPlane data_plane;
  FakeSnapshots snapshots;
  FakeServers others;
  FakeJournal journal;
  Metrics metrics;
  std::unique_ptr<Coordinator> coordinator;

 private:
  const bool with_others_;
};

// Whether both are of the same splits, whatever their numbers.
inline bool SameWork(const Lease& a, const Lease& b) {
  return a.kind() == b.kind() && a.data_epoch() == b.data_epoch() && a.split() == b.split() &&
         a.splits() == b.splits();
}

}  // namespace recon
