// What somebody who reaches a job's port, and belongs to it or not, cannot do to those who train.

#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "catch2/catch.hpp"
#include "common/base/limits.h"
#include "common/rpc/connection_limits.h"
#include "common/rpc/grpc_transport.h"
#include "common/shm/shm_transport.h"
#include "tests/integration/job_checks.h"
#include "tests/support/process.h"

namespace recon {
namespace {

// No worker reaches it.
constexpr uint64_t kFarStep = uint64_t{1} << 40;

// A job that one worker, "victim", trains until the test ends.
class TrainedJob {
 public:
  TrainedJob() : job(-1) {
    job.flags.job.set_data_epochs(100'000);
    job.StartServer();
    WorkerFlags flags = job.MakeWorker("victim");
    flags.shared_memory = GENERATE(true, false);
    training_ = std::thread([this, flags] { status_ = RunWorker(flags, &job.stop); });
    REQUIRE(Eventually([&] { return victim().pushes() > 3; }));
  }
  ~TrainedJob() {
    job.stop = true;
    training_.join();
    CHECK(status_.ok());
  }

  MemberStatus victim() const {
    const auto status = job.Control().Status();
    if (!status.ok()) return {};
    for (const MemberStatus& member : status->members()) {
      if (member.name() == "victim") return member;
    }
    return {};
  }
  // As anybody reads it.
  WorkerIdentity IdentityOfVictim() const {
    const MemberStatus member = victim();
    WorkerIdentity identity;
    identity.set_worker(member.worker());
    identity.set_incarnation(member.incarnation());
    identity.set_cluster_epoch(job.Control().Status()->cluster_epoch());
    return identity;
  }
  void CheckGoesOn() const {
    const MemberStatus before = victim();
    CHECK(Eventually([&] { return victim().pushes() > before.pushes() + 20; }));
    CHECK(victim().incarnation() == before.incarnation());
    CHECK(victim().state() == MEMBER_ACTIVE);
  }

  InProcessJob job;

 private:
  std::thread training_;
  absl::Status status_;
};

}  // namespace

TEST_CASE("who has read in the status who a worker is cannot speak for it", "[intruder]") {
  TrainedJob trained;
  const InProcessJob& job = trained.job;
  const WorkerIdentity identity = trained.IdentityOfVictim();
  for (const Caller& caller : {Caller(), Caller::Worker(PlayedSecret()), Caller{"no secret", ""}}) {
    INFO("a secret of " << caller.secret.size() << " bytes");
    ControlClient control(*ConnectTo(job.flags.listen, {}), ControlClient::kDeadline, caller);
    const auto refused = [&](const absl::Status& status) {
      INFO(status);
      CHECK((absl::IsPermissionDenied(status) || absl::IsInvalidArgument(status)));
    };
    RegisterRequest registration = RequestOf("victim");
    registration.set_incarnation(identity.incarnation());
    refused(control.Register(registration).status());
    HeartbeatRequest heartbeat;
    *heartbeat.mutable_identity() = identity;
    refused(control.Heartbeat(heartbeat).status());
    AcquireRequest acquire;
    *acquire.mutable_identity() = identity;
    refused(control.Acquire(acquire).status());
    CompleteRequest complete;
    *complete.mutable_identity() = identity;
    refused(control.Complete(complete).status());
    RejoinRequest rejoin;
    *rejoin.mutable_identity() = identity;
    refused(control.Rejoin(rejoin).status());
    LeaveRequest leave;
    *leave.mutable_identity() = identity;
    refused(control.Leave(leave).status());

    GrpcTransport frames({*ConnectTo(job.flags.listen, {})}, std::make_shared<SendWindow>(1, 1), caller);
    refused(PushAs(identity, kFarStep, 3e38F, &frames));
  }
  trained.CheckGoesOn();
}

TEST_CASE("a worker of the job cannot push for another one, nor take its name", "[intruder]") {
  TrainedJob trained;
  const InProcessJob& job = trained.job;
  ControlClient control = job.Control();
  const auto registered = control.Register(RequestOf("intruder"));
  REQUIRE(registered.ok());
  const WorkerIdentity identity = trained.IdentityOfVictim();
  const Caller caller = Caller::Worker(PlayedSecret());
  const auto over_grpc = [&] {
    return std::make_unique<GrpcTransport>(
        std::vector<std::shared_ptr<grpc::Channel>>{*ConnectTo(job.flags.listen, {})},
        std::make_shared<SendWindow>(1, 1), caller);
  };
  CHECK(absl::IsPermissionDenied(PushAs(identity, kFarStep, 3e38F, over_grpc().get())));
  for (const std::string& secret : {std::string(), caller.secret}) {
    ShmTransport shared(registered->shared_memory(), over_grpc(), secret);
    REQUIRE(shared.Connected());
    CHECK(absl::IsPermissionDenied(PushAs(identity, kFarStep, 3e38F, &shared)));
  }
  const auto name = control.Register(RequestOf("victim"));
  CHECK(absl::IsAborted(name.status()));
  trained.CheckGoesOn();
}

TEST_CASE("a worker whose model has as many tensors as any may have is no stranger", "[intruder]") {
  InProcessJob job(-1);
  job.StartServer();
  RegisterRequest request = RequestOf("large");
  request.mutable_model()->clear_tensors();
  for (int i = 0; i < limits::kTensorsMax; ++i) {
    TensorSpec* tensor = request.mutable_model()->add_tensors();
    tensor->set_name(absl::StrCat("model.layers.", i / 1000, ".mlp.experts.", i % 1000, ".down_proj.weight"));
    tensor->add_shape(4);
  }
  CHECK(request.ByteSizeLong() > ConnectionLimits().stranger_bytes_max);
  ControlClient control(*ConnectTo(job.flags.listen, {}), absl::Seconds(60), Caller::Worker(PlayedSecret()));
  const auto registered = control.Register(request);
  INFO(registered.status());
  CHECK(registered.ok());
}

TEST_CASE("a split is not completed by a worker that has pushed nothing for it", "[intruder]") {
  TrainedJob trained;
  ControlClient control = trained.job.Control();
  const auto registered = control.Register(RequestOf("idler"));
  REQUIRE(registered.ok());
  AcquireRequest acquire;
  acquire.mutable_identity()->set_worker(registered->worker());
  acquire.mutable_identity()->set_incarnation(PlayedSecret().incarnation().value());
  acquire.mutable_identity()->set_cluster_epoch(registered->cluster_epoch());
  Lease lease;
  REQUIRE(Eventually([&] {
    const auto acquired = control.Acquire(acquire);
    if (acquired.ok()) lease = acquired->lease();
    if (lease.kind() == LEASE_TRAIN) return true;
    CompleteRequest back;
    *back.mutable_identity() = acquire.identity();
    back.set_lease(lease.lease());
    back.set_abandon(true);
    control.Complete(back).IgnoreError();
    return false;
  }));
  CompleteRequest complete;
  *complete.mutable_identity() = acquire.identity();
  complete.set_lease(lease.lease());
  complete.set_split(lease.split());
  const auto completed = control.Complete(complete);
  CHECK(absl::IsAborted(completed.status()));
  CHECK(absl::StrContains(completed.status().message(), "nothing was pushed since lease"));
  const CompletionsReply completions = *control.Completions();
  for (const Completion& one : completions.completions()) CHECK(one.worker() != "idler");
  trained.CheckGoesOn();
}

TEST_CASE("a heartbeat with more leases than a worker may hold is refused, and nobody else notices",
          "[intruder]") {
  TrainedJob trained;
  ControlClient control(*ConnectTo(trained.job.flags.listen, {}), absl::Seconds(60),
                        Caller::Worker(PlayedSecret()));
  const auto registered = control.Register(RequestOf("intruder"));
  REQUIRE(registered.ok());
  HeartbeatRequest heartbeat;
  heartbeat.mutable_identity()->set_worker(registered->worker());
  heartbeat.mutable_identity()->set_incarnation(PlayedSecret().incarnation().value());
  heartbeat.mutable_identity()->set_cluster_epoch(registered->cluster_epoch());
  CHECK(control.Heartbeat(heartbeat).ok());
  for (size_t i = 0; i <= limits::kLeasesPerWorkerMax; ++i) heartbeat.add_leases(UINT64_MAX);
  CHECK(absl::IsInvalidArgument(control.Heartbeat(heartbeat).status()));
  for (int i = 0; i < 4; ++i) heartbeat.add_leases(UINT64_MAX - static_cast<uint64_t>(i));
  while (heartbeat.ByteSizeLong() < (31 << 20)) {
    for (int i = 0; i < 100'000; ++i) heartbeat.add_leases(UINT64_MAX);
  }
  for (int i = 0; i < 4; ++i) {
    const absl::Status refused = control.Heartbeat(heartbeat).status();
    INFO(refused);
    // By its number of leases, or by its length, which also ends the connection.
    CHECK((absl::IsInvalidArgument(refused) || absl::IsResourceExhausted(refused) ||
           absl::IsUnavailable(refused)));
  }
  trained.CheckGoesOn();
}

}  // namespace recon
