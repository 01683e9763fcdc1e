#include "tests/integration/in_process_job.h"
#include "common/base/clock.h"
#include "common/rpc/grpc_transport.h"

#include <algorithm>
#include <string>

#include "absl/strings/match.h"
#include "catch2/catch.hpp"
#include "common/base/copied_bytes.h"
#include "common/ucx/ucx_transport.h"
#include "tests/integration/job_checks.h"
#include "tests/support/process.h"
#include "worker/comm/session.h"

namespace recon {

TEST_CASE("a job learns and completes every sample once, under every bound and codec", "[job]") {
  struct Case {
    int bound;
    const char* codec;
    CodecId pull_codec;
  };
  for (const Case& c :
       {Case{-1, "fp16", CodecId::kFp16}, Case{2, "bf16", CodecId::kBf16}, Case{0, "fp32", CodecId::kFp32},
        Case{-1, "int8", CodecId::kFp32}, Case{-1, "topk:0.1", CodecId::kFp32},
        Case{0, "topk:0.1,no_decay=fp32", CodecId::kFp16}, Case{-1, "randomk:0.3", CodecId::kBf16},
        Case{2, "auto", CodecId::kFp32}}) {
    INFO("bound " << c.bound << ", codec " << c.codec);
    InProcessJob job(c.bound, 2);
    job.StartServer();
    std::vector<WorkerFlags> workers = {job.MakeWorker("a"), job.MakeWorker("b"), job.MakeWorker("c")};
    for (WorkerFlags& worker : workers) {
      worker.codec.rules = *CodecRules::Parse(c.codec);
      worker.codec.pull_codec = c.pull_codec;
    }
    CheckAllOk(job.RunWorkers(workers));
    const StatusReply status = *job.Control().Status();
    CHECK(status.phase() == PHASE_FINISHED);
    CHECK(status.samples_completed() == 2 * kSamples);
    REQUIRE(status.evaluations_size() == 2);
    CHECK(status.evaluations(1).samples() == 150);
    CHECK(status.evaluations(1).accuracy() > 0.9);
    CHECK(CompletedOnce(*job.Control().Completions(), 2, kSamples));
    CHECK(status.pushes() == 2 * 42);  // Ten splits of four batches and one of two, each epoch.
  }
}

TEST_CASE("leases of many splits: whatever restarts, each is done once", "[job]") {
  InProcessJob job(-1, 2);
  job.flags.lease_target = absl::Seconds(1);  // On a busy machine a batch may take long.
  constexpr uint32_t kEpochs = 20;
  job.flags.job.set_data_epochs(kEpochs);
  job.flags.job.set_split_samples(10);
  job.StartServer();
  std::vector<WorkerFlags> workers = {job.MakeWorker("a"), job.MakeWorker("b")};
  for (WorkerFlags& worker : workers) worker.step_time = absl::Milliseconds(2);
  std::vector<absl::Status> statuses;
  std::thread training([&] { statuses = job.RunWorkers(workers); });
  for (int restart = 0; restart < 2; ++restart) {
    ControlClient control = job.Control();
    CHECK(Eventually([&] {
      const auto status = control.Status();
      return status.ok() && status->members_size() == 2 &&
             std::all_of(status->members().begin(), status->members().end(),
                         [](const MemberStatus& member) { return member.splits() > 5; });
    }));
    job.StopServer();
    job.StartServer();
  }
  training.join();
  CheckAllOk(statuses);
  CHECK(CompletedOnce(*job.Control().Completions(), kEpochs, kSamples));
}

TEST_CASE("a lease's splits are completed in order, again where a reply was lost, and the rest is adopted",
          "[job]") {
  InProcessJob job(-1);
  job.flags.job.set_data_epochs(1000);
  job.flags.job.set_split_samples(10);
  job.flags.lease_target = absl::Seconds(10);
  job.flags.timeouts.evict_after = absl::Seconds(60);
  job.StartServer();
  WorkerFlags real = job.MakeWorker("a");
  real.step_time = absl::Milliseconds(20);
  std::vector<absl::Status> statuses;
  std::thread training([&] { statuses = job.RunWorkers({real}); });
  ControlClient control = job.Control();
  REQUIRE(Eventually([&] {
    const auto status = control.Status();
    return status.ok() && status->samples_completed() > 0;
  }));
  RegisterRequest request = RequestOf("fake");
  WorkerIdentity identity;
  const auto enroll = [&] {
    const RegisterReply reply = *control.Register(request);
    identity.set_worker(reply.worker());
    identity.set_incarnation(request.incarnation());
    identity.set_cluster_epoch(reply.cluster_epoch());
    return reply;
  };
  enroll();
  GrpcTransport transport({*ConnectTo(job.flags.listen, {})}, std::make_shared<SendWindow>(1, 1),
                          Caller::Worker(PlayedSecret()));
  HeartbeatRequest heartbeat;
  *heartbeat.mutable_identity() = identity;
  heartbeat.mutable_progress()->set_samples_per_second(40);  // 40 splits in 10 s.
  REQUIRE(control.Heartbeat(heartbeat).ok());
  AcquireRequest acquire;
  *acquire.mutable_identity() = identity;
  Lease lease;
  REQUIRE(Eventually([&] {
    lease = control.Acquire(acquire)->lease();  // At the end of a data epoch they are smaller.
    if (lease.kind() != LEASE_TRAIN || lease.splits() >= 5) return lease.kind() == LEASE_TRAIN;
    CompleteRequest give_back;
    *give_back.mutable_identity() = identity;
    give_back.set_lease(lease.lease());
    give_back.set_abandon(true);
    return !control.Complete(give_back).ok();
  }));
  CHECK(lease.splits() <= 40);
  CHECK(lease.end() - lease.begin() == 10 * lease.splits());
  const auto complete = [&](uint32_t split) {
    CompleteRequest done;
    *done.mutable_identity() = identity;
    done.set_lease(lease.lease());
    done.set_split(lease.split() + split);
    return control.Complete(done).status();
  };
  CHECK(absl::IsAborted(complete(1)));
  REQUIRE(PushAs(identity, /*step=*/0, /*value=*/0, &transport).ok());
  CHECK(complete(0).ok());
  CHECK(complete(0).ok());  // As if the reply had been lost.
  CHECK(complete(1).ok());
  CHECK(absl::IsAborted(complete(0)));
  CHECK(absl::IsAborted(complete(3)));

  job.StopServer();
  job.StartServer();
  *request.add_held() = lease;
  request.mutable_held(0)->set_splits(limits::kLeaseSplitsMax + 1);
  CHECK(enroll().adopted_size() == 0);
  request.mutable_held(0)->set_splits(lease.splits());
  const RegisterReply reply = enroll();
  REQUIRE(reply.adopted_size() == 1);
  CHECK(reply.adopted(0).split() == lease.split() + 2);
  CHECK(reply.adopted(0).splits() == lease.splits() - 2);
  CHECK(reply.adopted(0).begin() == lease.begin() + 20);
  CHECK(reply.adopted(0).end() == lease.end());
  lease.set_lease(reply.adopted(0).lease());
  CHECK(complete(1).ok());  // The reply to that was lost with the server.
  CHECK(complete(2).ok());
  for (size_t i = 0; i < limits::kLeasesPerWorkerMax; ++i) *request.add_held() = lease;
  CHECK(absl::IsInvalidArgument(control.Register(request).status()));
  job.stop = true;
  training.join();
  CheckAllOk(statuses);
}

TEST_CASE("a worker that is alive and stands still keeps neither its lease nor the others' step", "[job]") {
  for (const int bound : {-1, 0}) {
    INFO("bound " << bound);
    InProcessJob job(bound, 1);
    constexpr uint32_t kEpochs = 60;
    job.flags.job.set_data_epochs(kEpochs);
    job.flags.job.set_lease_duration_ms(1000);
    job.StartServer();
    std::vector<absl::Status> statuses;
    WorkerFlags slow = job.MakeWorker("a");
    slow.slow_factor = 20;
    std::thread training([&] { statuses = job.RunWorkers({slow}); });
    ControlClient control = job.Control();
    REQUIRE(Eventually([&] {
      const auto status = control.Status();
      return status.ok() && status->samples_completed() > 0;
    }));
    RegisterRequest request = RequestOf("hangs");
    const auto registered = control.Register(request);
    REQUIRE(registered.ok());
    HeartbeatRequest heartbeat;
    heartbeat.mutable_identity()->set_worker(registered->worker());
    heartbeat.mutable_identity()->set_incarnation(request.incarnation());
    heartbeat.mutable_identity()->set_cluster_epoch(registered->cluster_epoch());
    AcquireRequest acquire;
    *acquire.mutable_identity() = heartbeat.identity();
    absl::StatusOr<AcquireReply> acquired;
    REQUIRE(Eventually([&] {
      acquired = control.Acquire(acquire);
      return acquired.ok() && acquired->lease().kind() == LEASE_TRAIN;
    }));
    heartbeat.add_leases(acquired->lease().lease());
    // Some steps, as its device still does them; they are not pushed.
    absl::Time stopped;
    for (uint64_t batches = 0; batches <= 5; ++batches) {
      heartbeat.mutable_progress()->set_batches(batches);
      stopped = Now();
      const auto reply = control.Heartbeat(heartbeat);
      REQUIRE(reply.ok());
      CHECK(reply->lost_size() == 0);
    }
    REQUIRE(Eventually([&] {
      const auto reply = control.Heartbeat(heartbeat);
      return reply.ok() && reply->lost_size() == 1;
    }));
    CHECK(Now() - stopped >= absl::Milliseconds(1000));
    // The other one does it all, while this one's heart still beats.
    REQUIRE(Eventually([&] {
      control.Heartbeat(heartbeat).IgnoreError();
      const auto status = control.Status();
      return status.ok() && status->phase() == PHASE_FINISHED;
    }));
    training.join();
    CheckAllOk(statuses);
    CHECK(CompletedOnce(*control.Completions(), kEpochs, kSamples));
  }
}

TEST_CASE("a worker whose steps are far ahead takes the others along, and nobody waits for ever", "[job]") {
  InProcessJob job(0, 2);
  job.MakeLocal(2, 1);  // Whoever waited would wait for minutes.
  job.flags.job.set_data_epochs(20);
  job.StartServer();
  std::vector<absl::Status> statuses;
  std::thread training([&] { statuses = job.RunWorkers({job.MakeWorker("a"), job.MakeWorker("b")}); });
  ControlClient control = job.Control();
  REQUIRE(Eventually([&] {
    const auto status = control.Status();
    return status.ok() && status->samples_completed() >= kSamples;
  }));
  RegisterRequest request = RequestOf("far");
  request.set_next_step(uint64_t{1} << 47);
  CHECK(absl::IsInvalidArgument(control.Register(request).status()));
  if (GENERATE(false, true)) {
    // It was told where to go on by a server that has died since, and an older push is still under way.
    request.set_next_step(1);
    request.set_first_new_step(5000);
  } else {
    request.set_next_step(5000);
  }
  const auto registered = control.Register(request);
  INFO(registered.status());
  REQUIRE(registered.ok());
  CHECK(registered->cluster_epoch() == 2);
  CHECK(registered->start_step() == 5000);
  training.join();
  CheckAllOk(statuses);
  CHECK(CompletedOnce(*control.Completions(), 20, kSamples));
  CHECK(control.Status()->frontier_step() > 5000);
}

TEST_CASE("a worker with another model or data set is refused by name", "[job]") {
  InProcessJob job(-1, 3);
  job.StartServer();
  absl::Status first_status;
  std::thread first([&] { first_status = RunWorker(job.MakeWorker("a"), &job.stop); });
  ControlClient control = job.Control();
  REQUIRE(Eventually([&] { return control.Status()->members_size() == 1; }));
  WorkerFlags other = job.MakeWorker("b");
  other.model.model = "mlp:16-25-4";
  absl::Status status = RunWorker(other, &job.stop);
  CHECK(absl::IsInvalidArgument(status));
  CHECK(absl::StrContains(status.message(), "mlp:16-25-4 instead of mlp:16-24-4"));
  other = job.MakeWorker("b");
  other.data = "clusters:1000,150,16,4";
  status = RunWorker(other, &job.stop);
  CHECK(absl::IsInvalidArgument(status));
  CHECK(absl::StrContains(status.message(), "1000 training samples, the job has 1050"));
  job.stop = true;
  first.join();
  CHECK(first_status.ok());
}

TEST_CASE("a worker with the name of one that is alive waits, and takes over when that has left", "[job]") {
  InProcessJob job(-1);
  job.flags.job.set_data_epochs(100'000);
  job.StartServer();
  std::atomic<bool> stop_first{false};
  absl::Status first_status, second_status;
  std::thread first([&] { first_status = RunWorker(job.MakeWorker("a"), &stop_first); });
  ControlClient control = job.Control();
  const auto incarnation = [&] {
    const auto status = control.Status();
    return status.ok() && status->members_size() == 1 ? status->members(0).incarnation() : 0;
  };
  const auto goes_on = [&] {
    const uint64_t samples = control.Status()->samples_completed();
    return Eventually([&] { return control.Status()->samples_completed() > samples + 2 * kSamples; });
  };
  REQUIRE(Eventually([&] { return incarnation() != 0 && control.Status()->samples_completed() > 0; }));
  const uint64_t of_first = incarnation();
  std::thread second([&] { second_status = RunWorker(job.MakeWorker("a"), &job.stop); });
  CHECK(goes_on());
  CHECK(incarnation() == of_first);
  stop_first = true;
  first.join();
  CHECK(first_status.ok());
  CHECK(Eventually([&] { return incarnation() != of_first; }));
  CHECK(goes_on());
  job.stop = true;
  second.join();
  CHECK(second_status.ok());
}

TEST_CASE("a name that was drawn pushes nobody out who is alive: another is drawn", "[job]") {
  InProcessJob job(-1, 3);
  job.StartServer();
  std::vector<absl::Status> statuses;
  std::thread holder([&] { statuses = job.RunWorkers({job.MakeWorker("a")}); });
  ControlClient control = job.Control();
  REQUIRE(Eventually([&] { return control.Status()->members_size() == 1; }));
  std::vector<std::string> drawn = {"b", "a"};
  Session::Options options;
  options.draw_name = [&] {
    const std::string name = drawn.back();
    drawn.pop_back();
    return name;
  };
  options.name = options.draw_name();
  options.incarnation = PlayedSecret().incarnation();
  options.model = ParseMlp("16-24-4")->spec;
  options.train_samples = kSamples;
  options.test_samples = 150;
  {
    const auto session = Session::Join(options, &control, &job.stop);
    REQUIRE(session.ok());
    CHECK((*session)->name() == "b");
    const StatusReply status = *control.Status();
    REQUIRE(status.members_size() == 2);
    for (const MemberStatus& member : status.members()) CHECK(member.state() == MEMBER_IDLE);
  }
  job.stop = true;
  holder.join();
  CheckAllOk(statuses);
}

TEST_CASE("a drained server starts again where it was, and the workers go on by themselves", "[job]") {
  for (const int bound : {-1, 0}) {
    INFO("bound " << bound);
    InProcessJob job(bound, 2);
    job.flags.job.set_data_epochs(4);
    job.StartServer();
    std::thread workers([&] { CheckAllOk(job.RunWorkers({job.MakeWorker("a"), job.MakeWorker("b")})); });
    for (int restart = 1; restart <= 2; ++restart) {
      const uint64_t goal = static_cast<uint64_t>(restart) * kSamples;
      CHECK(Eventually([&] {
        const auto status = job.Control().Status();
        return status.ok() && status->samples_completed() >= goal;
      }));
      job.StopServer();
      job.StartServer();
    }
    workers.join();
    const StatusReply status = *job.Control().Status();
    CHECK(status.cluster_epoch() == 3);
    CHECK(status.restored_generation() > 0);
    CHECK(status.evaluations_size() == 4);
    CHECK(CompletedOnce(*job.Control().Completions(), 4, kSamples));
  }
}

TEST_CASE("through shared memory neither gradients nor parameters are copied", "[job]") {
  InProcessJob job(-1);
  // Zeros count in it, so that all pushes are dense: the answer to a sparse one is copied.
  job.flags.optimizer.kind = OptimizerKind::kMomentum;
  job.flags.optimizer.learning_rate = 0.01;
  job.StartServer();
  WorkerFlags worker = job.MakeWorker("a");
  worker.model.model = "mlp:16-20000-4";
  worker.codec.pull_codec = CodecId::kFp16;  // FP32 would be the model's own pages.
  const uint64_t before = CopiedBytes(CopyReason::kSharedMemory);
  CheckAllOk(job.RunWorkers({worker}));
  const uint64_t copied = CopiedBytes(CopyReason::kSharedMemory) - before;
  const StatusReply status = *job.Control().Status();
  CHECK(copied > 0);  // Headers.
  // Headers, the values at first, and one of them back: a gradient has 4 bytes a parameter, a reply 2.
  CHECK(copied / status.pushes() < status.parameters());
}

TEST_CASE("frames go over UCX, also after the server has moved, and only where it is offered", "[job]") {
  if (!HaveUcx()) {
    WARN("SKIP: built without UCX");
    return;
  }
  InProcessJob job(-1, 2);
  constexpr uint32_t kEpochs = 10;
  job.flags.job.set_data_epochs(kEpochs);
  job.flags.frames.ucx_listen = "127.0.0.1:0";  // After a restart at another port.
  const auto refused_flags = ReconServer::Start(job.flags);
  CHECK(absl::IsInvalidArgument(refused_flags.status()));
  CHECK(absl::StrContains(refused_flags.status().message(), "give --insecure"));
  job.flags.tls.insecure = true;
  job.StartServer();
  std::vector<WorkerFlags> workers = {job.MakeWorker("a"), job.MakeWorker("b")};
  for (WorkerFlags& worker : workers) {
    worker.ucx = true;
    worker.step_time = absl::Milliseconds(2);
  }
  std::vector<absl::Status> statuses;
  std::thread training([&] { statuses = job.RunWorkers(workers); });
  CHECK(Eventually([&] { return job.Control().Status()->samples_completed() > kSamples; }));
  job.StopServer();
  job.StartServer();
  training.join();
  CheckAllOk(statuses);
  const StatusReply status = *job.Control().Status();
  CHECK(CompletedOnce(*job.Control().Completions(), kEpochs, kSamples));
  CHECK(status.evaluations(kEpochs - 1).accuracy() > 0.9);
  const auto ucx = std::find_if(status.copied_bytes().begin(), status.copied_bytes().end(),
                                [](const CopiedBytesStatus& copied) { return copied.why() == "ucx"; });
  REQUIRE(ucx != status.copied_bytes().end());
  CHECK(ucx->bytes() > 0);  // The frames of so small a model are copied out of UCX's memory.

  InProcessJob without(-1);
  without.StartServer();
  WorkerFlags worker = without.MakeWorker("c");
  worker.ucx = true;
  const absl::Status refused = without.RunWorkers({worker})[0];
  INFO(refused);
  CHECK(absl::IsFailedPrecondition(refused));
  CHECK(absl::StrContains(refused.message(), "--ucx-listen"));
}

TEST_CASE("settings that would change what splits mean are refused at restart", "[job]") {
  InProcessJob job(-1);
  job.StartServer();
  CheckAllOk(job.RunWorkers({job.MakeWorker("a")}));
  job.StopServer();
  const auto refused = [&](auto change, const std::string& word) {
    ServerFlags flags = job.flags;
    flags.listen = "127.0.0.1:0";
    change(&flags);
    const absl::Status status = ReconServer::Start(flags).status();
    INFO(status);
    CHECK(absl::IsFailedPrecondition(status));
    CHECK(absl::StrContains(status.message(), word));
  };
  refused([](ServerFlags* f) { f->job.set_split_samples(50); },
          "--split-samples is 50, this job was started with 100");
  refused([](ServerFlags* f) { f->job.set_seed(9); }, "--seed");
  refused([](ServerFlags* f) { f->job.set_data_epochs(1); }, "--data-epochs");
  refused([](ServerFlags* f) { f->optimizer.kind = OptimizerKind::kAdam; }, "--optimizer is adam");
  refused([&](ServerFlags* f) { f->snapshots.directory = job.directory / "elsewhere"; }, "--snapshot-dir");
}

TEST_CASE("a new job starts from another job's parameters", "[job]") {
  InProcessJob first(-1);
  first.StartServer();
  CheckAllOk(first.RunWorkers({first.MakeWorker("a")}));
  const double reached = first.Control().Status()->evaluations(1).loss();
  first.StopServer();
  InProcessJob second(-1);
  second.flags.from_snapshot.directory = first.flags.snapshots.directory;
  second.flags.optimizer.kind = OptimizerKind::kSgd;
  second.flags.optimizer.learning_rate = 0;
  second.StartServer();
  CheckAllOk(second.RunWorkers({second.MakeWorker("a")}));
  CHECK(second.Control().Status()->evaluations(0).loss() == Approx(reached));
}

TEST_CASE("a codec that the server does not accept is refused by name, before training", "[job]") {
  InProcessJob job(-1, 1);
  job.flags.job.set_refused_codecs(1u << static_cast<int>(CodecId::kInt8));
  job.StartServer();
  WorkerFlags worker = job.MakeWorker("a");
  worker.codec.rules = *CodecRules::Parse("int8");
  const absl::Status status = job.RunWorkers({worker})[0];
  CHECK(absl::IsInvalidArgument(status));
  CHECK(absl::StrContains(status.message(), "the server does not accept int8"));
}

TEST_CASE("a model of many shards gets whole replies to its sparse pushes", "[job]") {
  // 9 M parameters: all of them are 36 MB in FP32, far more than one frame may carry; a push is 50 KB.
  InProcessJob job(-1, 1);
  job.flags.optimizer.kind = OptimizerKind::kSgd;
  job.flags.optimizer.learning_rate = 0.0005;  // So wide a model diverges at the other tests' rate.
  job.StartServer();
  std::vector<WorkerFlags> workers = {job.MakeWorker("a"), job.MakeWorker("b")};
  for (WorkerFlags& worker : workers) {
    worker.model.model = "mlp:16-3000-3000-4";
    worker.codec.rules = *CodecRules::Parse(worker.name == "a" ? "topk:0.002" : "fp32");
    worker.codec.flush_period = absl::Milliseconds(500);
  }
  CheckAllOk(job.RunWorkers(workers));
  CHECK((*job.Control().Status()).phase() == PHASE_FINISHED);
}

}  // namespace recon
