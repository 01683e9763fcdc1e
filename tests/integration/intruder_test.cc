// What somebody who reaches a job's port, and belongs to it or not, cannot do to those who train.

#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/match.h"
#include "catch2/catch.hpp"
#include "common/rpc/grpc_transport.h"
#include "common/shm/shm_transport.h"
#include "common/tensor/param_layout.h"
#include "tests/integration/job_checks.h"
#include "tests/support/process.h"
#include "worker/comm/frames.h"
#include "worker/comm/param_client.h"

namespace recon {
namespace {

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

// A push of `identity` at a step that no worker reaches.
absl::Status PushAs(const WorkerIdentity& identity, Transport* transport) {
  const ParamLayout layout = *ParamLayout::Create(RequestOf("").model());
  ParamClient client(transport);
  FrameHeader header;
  header.step = uint64_t{1} << 40;
  header.samples = 1;
  const std::vector<EncodedShard> shards = PlainShards(layout, std::vector<float>(layout.params(), 3e38F));
  absl::Status status;
  for (const auto& reply :
       client.CallAll(FrameKind::kPush, FramesFor(layout, header, identity, shards), absl::Seconds(20))) {
    status.Update(reply.status());
  }
  return status;
}

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
    refused(PushAs(identity, &frames));
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
  CHECK(absl::IsPermissionDenied(PushAs(identity, over_grpc().get())));
  for (const std::string& secret : {std::string(), caller.secret}) {
    ShmTransport shared(registered->shared_memory(), over_grpc(), secret);
    REQUIRE(shared.Connected());
    CHECK(absl::IsPermissionDenied(PushAs(identity, &shared)));
  }
  const auto name = control.Register(RequestOf("victim"));
  CHECK(absl::IsAborted(name.status()));
  trained.CheckGoesOn();
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

}  // namespace recon
