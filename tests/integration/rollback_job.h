#pragma once

#include <memory>
#include <string>
#include <vector>

#include "catch2/catch.hpp"
#include "common/rpc/grpc_transport.h"
#include "common/snapshot/manifest.h"
#include "common/tensor/param_layout.h"
#include "server/recovery/log_replay.h"
#include "server/recovery/snapshot_service.h"
#include "server/recovery/state_recovery.h"
#include "tests/integration/job_checks.h"
#include "tests/support/process.h"
#include "worker/comm/frames.h"
#include "worker/comm/param_client.h"

// What tests of rollbacks share: jobs that keep their log, and the state that it stands for.

namespace recon {

inline constexpr uint32_t kEpochs = 12;

// A job whose log and snapshots stay where they are until the test has looked at them.
inline InProcessJob* Prepare(InProcessJob* job) {
  job->flags.job.set_data_epochs(kEpochs);
  job->flags.snapshots.interval = absl::Hours(1);
  job->flags.log.replay_target = absl::Hours(1);
  job->flags.snapshots.keep.last = 1000;
  return job;
}

inline std::vector<WorkerFlags> FourWorkers(const InProcessJob& job) {
  std::vector<WorkerFlags> workers;
  for (const char* name : {"a", "b", "c", "d"}) {
    workers.push_back(job.MakeWorker(name));
    workers.back().step_time = absl::Milliseconds(1);
  }
  return workers;
}

inline bool SamplesReach(const InProcessJob& job, uint64_t samples) {
  return Eventually([&] {
    const auto status = job.Control().Status();
    return status.ok() && status->samples_completed() >= samples;
  });
}

// Asks for it, and waits until it is done.
inline RollbackRecord RollBackJob(const InProcessJob& job, const RollbackRequest& request) {
  const absl::StatusOr<RollbackReply> planned = job.Control().Rollback(request);
  INFO(planned.status());
  REQUIRE(planned.ok());
  RollbackRecord done;
  REQUIRE(Eventually([&] {
    const auto status = job.Control().Status();
    if (status.ok()) done = status->rollback();
    return status.ok() && done.history() >= planned->plan().history();
  }));
  CHECK(done.done());
  return done;
}

inline Manifest ManifestOf(const InProcessJob& job, uint64_t generation) {
  const auto store = *LocalStore::Open(job.flags.snapshots.directory, /*writer=*/false);
  return *SnapshotReader(store.get()).ReadManifest(Generation(generation));
}

inline std::string ControlOf(const Manifest& manifest) {
  std::string all;
  for (const CompletedPass& pass : manifest.control().passes()) all += pass.SerializeAsString();
  return all;
}

// Hands all records to a Replayer but the frames of some pushes: a log that never had them.
class LogWithout : public LogVisitor {
 public:
  LogWithout(LogVisitor* rest, LoggedPushes pushes) : rest_(rest), pushes_(std::move(pushes)) {}

  absl::Status OnRules(const ApplyRules& rules) override { return rest_->OnRules(rules); }
  absl::Status OnRecord(LogRecordKind kind, uint64_t sequence, const ByteChain& payload) override {
    if (kind == LogRecordKind::kFrame) {
      const FrameHeader header = DecodeFrame(payload)->header;
      if (pushes_.count({header.worker, header.incarnation, header.step}) > 0) {
        ++left_out_;
        return absl::OkStatus();
      }
    }
    return rest_->OnRecord(kind, sequence, payload);
  }
  int left_out() const { return left_out_; }

 private:
  LogVisitor* const rest_;
  const LoggedPushes pushes_;
  int left_out_ = 0;
};

// The state root after record `last` of the job's log, from a snapshot, without those pushes. By a server
// of the test's own, from nothing but the files.
inline std::string ReferenceRoot(const InProcessJob& job, uint64_t generation, uint64_t last,
                                 const LoggedPushes& without = {}) {
  const auto store = *LocalStore::Open(job.flags.snapshots.directory, /*writer=*/false);
  const SnapshotReader reader(store.get());
  const Manifest manifest = *reader.ReadManifest(Generation(generation));
  Metrics metrics;
  ParamServer::Options options;
  options.rules.optimizer.kind = job.flags.optimizer.kind;
  options.rules.cluster_epoch = 0;
  options.apply_threads = 3;
  ParamServer params(options, &metrics);
  REQUIRE(LoadInto(&params, reader, manifest).ok());
  ControlState control = *DecodeControl(manifest.control(), manifest.model());
  Replayer replayer(manifest, last, &params, &control);
  LogWithout log(&replayer, without);
  const auto end = ReadLog(FileSystem::Local(), job.flags.data + "/log", FirstRecordFor(manifest), &log);
  params.replay()->EndReplay();
  INFO(end.status());
  REQUIRE((end.ok() || absl::IsCancelled(end.status())));
  CHECK((log.left_out() > 0) == !without.empty());
  const TempDir directory;
  const auto output = *LocalStore::Open(directory.path(), /*writer=*/true);
  SnapshotService::Options service_options;
  service_options.optimizer = manifest.optimizer();
  SnapshotService service(service_options, &params, output.get(), &metrics);
  std::string root;
  service.Take("test", [&](const absl::StatusOr<SnapshotReply>& reply) { root = reply->state_root(); });
  service.Flush();
  return root;
}

// A process that registers as a worker and pushes one gradient, all values of which are `value`.
inline LoggedPush PushByHand(const InProcessJob& job, const std::string& name, float value) {
  ControlClient control = job.Control();
  const RegisterRequest request = RequestOf(name);
  const auto registered = control.Register(request);
  INFO(registered.status());
  REQUIRE(registered.ok());
  const ParamLayout layout = *ParamLayout::Create(request.model());
  GrpcTransport transport({*ConnectTo(job.flags.listen, {})}, std::make_shared<SendWindow>(1, 1),
                          Caller::Worker(PlayedSecret()));
  ParamClient client(&transport);
  WorkerIdentity identity;
  identity.set_worker(registered->worker());
  identity.set_incarnation(request.incarnation());
  identity.set_cluster_epoch(registered->cluster_epoch());
  FrameHeader header;
  header.step = registered->start_step() + 3;  // Synchronous steps are closed without it meanwhile.
  header.samples = 1;
  header.gradient_norm = value;
  std::vector<EncodedShard> shards = PlainShards(layout, std::vector<float>(layout.params(), value));
  for (EncodedShard& shard : shards) shard.version = 0;  // Unknown.
  absl::Status pushed = absl::AbortedError("not yet");
  // On a machine that is busy its step may be closed, too: then it is pushed as one that is further ahead.
  for (uint64_t tries = 1; absl::IsAborted(pushed) && tries <= 10; ++tries) {
    if (tries > 1) header.step = control.Status()->frontier_step() + 3 * tries;
    pushed = absl::OkStatus();
    for (const auto& reply :
         client.CallAll(FrameKind::kPush, FramesFor(layout, header, identity, shards), absl::Seconds(20))) {
      pushed.Update(reply.status());
    }
  }
  REQUIRE(pushed == absl::OkStatus());
  LeaveRequest leave;
  *leave.mutable_identity() = identity;
  CHECK(control.Leave(leave).ok());
  return {registered->worker(), request.incarnation(), header.step};
}

}  // namespace recon
