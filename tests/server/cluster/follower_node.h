#pragma once

#include <atomic>
#include <memory>
#include <string>
#include <thread>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/clock.h"
#include "common/base/mutex.h"
#include "common/base/status_macros.h"
#include "common/metrics/metrics.h"
#include "server/process/joined_server.h"
#include "server/process/place_recovery.h"
#include "server/recovery/state_recovery.h"
#include "tests/server/cluster/killable_store.h"
#include "tests/server/cluster/memory_net.h"
#include "tests/server/cluster/small_cluster.h"

namespace recon {

using FrameDone = std::function<void(const absl::StatusOr<ByteChain>&)>;

// How far it is, for whoever looks why nothing goes on.
inline std::string DescribeParams(ParamServer& params) {
  const ParamServer::Stats stats = params.GetStats();
  std::string said =
      absl::StrCat("epoch ", params.rules().cluster_epoch, ", sequence ", stats.sequence,
                   ", first open step ", stats.frontier_step, ", in the log ", params.members()->frontier());
  for (const auto& [worker, about] : stats.workers) {
    absl::StrAppend(&said, ", worker ", worker.value(), about.active ? " active" : "", " next ",
                    about.next_step);
  }
  return said;
}

// What of a server outlives its process: who it is, and its push log.
struct FollowerDisk {
  uint64_t server_id = 0;
  ServerPlace place;
  uint64_t lost = 0;  // As ControlDb has it.
  std::unique_ptr<FaultyFileSystem> files = std::make_unique<FaultyFileSystem>();
};

// The process of a server that another one leads, without ports: from its start to its death.
class FollowerLife final : private ShardHost {
 public:
  FollowerLife(FollowerDisk* disk, FaultyFileSystem* snapshots, MemoryNet* net)
      : disk_(disk), net_(net), store_(snapshots), joined_(this) {
    thread_ = std::thread([this] { Follow(); });
  }
  ~FollowerLife() override {
    Kill();
    net_->Stop(&stopped_);
    thread_.join();
    if (params_ != nullptr) params_->BeginDrain();
    parts_ = nullptr;
  }

  // From now on nothing that it does is seen outside.
  void Kill() {
    alive_->store(false);
    store_.Kill();
    joined_.Stop();
  }
  void Handle(const ByteChain& frame, Incarnation sender, FrameDone done) {
    ParamServer* const params = accepting();
    if (params == nullptr) return done(absl::UnavailableError("the server has no place yet"));
    params->Handle(
        frame, Now(), [] {},
        [alive = alive_, done = std::move(done)](absl::StatusOr<ByteChain> reply) {
          if (!alive->load()) reply = absl::UnavailableError("the server is dead");
          done(reply);
        },
        {sender});
  }
  void Pulse() {
    if (ParamServer* const params = accepting()) params->Tick(Now());
    joined_.ReportProgress();
  }
  // Another process is to begin in its place.
  bool begins_anew() const { return joined_.begins_anew(); }
  // Not OK: it gave up, for a reason of its own or of the head's.
  absl::Status failure() const { return joined_.failure(); }
  ParamServer* accepting() const override { return accepting_.load(); }

 private:
  void Follow() {
    while (joined_.failure().ok() && !joined_.begins_anew() && !joined_.AwaitStop(absl::ZeroDuration())) {
      const std::shared_ptr<MemoryLink> link = net_->Connect(&stopped_);
      if (link == nullptr) return;
      const absl::Status ended = joined_.Follow(link);
      if (absl::IsFailedPrecondition(ended) || absl::IsInvalidArgument(ended)) joined_.Fail(ended);
    }
  }
  ServerHello Hello() const override {
    ServerHello hello = HelloOf(disk_->server_id);
    hello.set_job_id(disk_->place.job_id());
    hello.set_server(disk_->place.server());
    hello.set_servers(disk_->place.servers());
    return hello;
  }
  // In the order in which Follower::TakeUp() does it.
  absl::StatusOr<RecoveredPlace> TakeUp(const Assignment& assignment) override {
    RECON_ASSIGN_OR_RETURN(ParamServer::Options options, PlaceOptions(assignment));
    options.apply_threads = 1;
    options.report_delivery = [this](WorkerId worker, Incarnation incarnation, uint64_t step,
                                     absl::Span<const uint32_t> shards, uint32_t push_parts) {
      joined_.ReportDelivery(worker, incarnation, step, shards, push_parts);
    };
    params_ = std::make_unique<ParamServer>(options, &metrics_);
    RECON_RETURN_IF_ERROR(params_->DefineModel(assignment.model()));
    SnapshotWriter::Options writer;
    writer.keep.last = assignment.snapshot_keep();
    writer.threads = 1;
    parts_ =
        std::make_unique<PartWriter>(params_.get(), std::make_unique<SnapshotWriter>(&store_, writer), 1.0,
                                     [this](ServerReport report) { joined_.Report(std::move(report)); });
    RECON_RETURN_IF_ERROR(disk_->files->CreateDirectories("/log"));
    if (!assignment.resume()) RECON_RETURN_IF_ERROR(RemoveLog(disk_->files.get(), "/log"));
    disk_->place.set_job_id(assignment.job_id());
    disk_->place.set_server(assignment.server());
    disk_->place.set_servers(assignment.servers());
    const RecoveryTarget target{params_.get(), &store_, disk_->files.get(), "/log", &metrics_};
    RECON_ASSIGN_OR_RETURN(
        const RecoveredPlace recovered,
        RecoverPlace(assignment, "/snapshots", /*synced=*/false, disk_->lost, target, parts_.get()));
    disk_->lost = LostAt(disk_->lost, recovered);
    PushLog::Options log;
    log.directory = "/log";
    log.segment_bytes = assignment.log_segment_bytes();
    RECON_ASSIGN_OR_RETURN(
        auto opened, PushLog::Open(log, disk_->files.get(), options.rules, params_->position().sequence + 1));
    params_->log()->Set(std::move(opened));
    params_->SetClusterEpoch(0);
    accepting_.store(params_.get());
    return recovered;
  }
  absl::StatusOr<LoggedWork> CountBeyond(uint64_t sequence) override {
    return CountWork(disk_->files.get(), "/log", sequence + 1, params_->position().sequence);
  }
  absl::Status RestoreState(const recon::RestoreState& command) override {
    return RestoreWorkersState(params_.get(), &store_, Generation(command.generation()), command.upload());
  }
  PartWriter* parts() const override { return parts_.get(); }
  void FollowTrace(const TraceCommand&) override {}

  FollowerDisk* const disk_;
  MemoryNet* const net_;
  const std::shared_ptr<std::atomic<bool>> alive_ = std::make_shared<std::atomic<bool>>(true);
  Metrics metrics_;
  KillableStore store_;
  JoinedServer joined_;
  std::unique_ptr<ParamServer> params_;
  std::atomic<ParamServer*> accepting_{nullptr};
  std::unique_ptr<PartWriter> parts_;
  bool stopped_ = false;  // Guarded by the net's lock.
  std::thread thread_;
};

// A server that is killed and started again. Thread-safe, but for Restart().
class FollowerNode {
 public:
  FollowerNode(uint64_t server_id, FaultyFileSystem* snapshots, MemoryNet* net)
      : snapshots_(snapshots), net_(net) {
    disk_.server_id = server_id;
    life_ = std::make_shared<FollowerLife>(&disk_, snapshots_, net_);
  }

  // Its process dies, and another one begins with what it has left on the disk.
  void Restart() {
    std::shared_ptr<FollowerLife> dying = Take();
    dying->Kill();
    std::unique_ptr<FaultyFileSystem> left = disk_.files->Copy();
    dying = nullptr;
    disk_.files = std::move(left);
    MutexLock lock(&mu_);
    life_ = std::make_shared<FollowerLife>(&disk_, snapshots_, net_);
  }
  void Handle(const ByteChain& frame, Incarnation sender, FrameDone done) {
    MutexLock lock(&mu_);
    if (life_ == nullptr) return done(absl::UnavailableError("the server is down"));
    life_->Handle(frame, sender, std::move(done));
  }
  void Pulse() {
    bool begins_anew = false;
    {
      MutexLock lock(&mu_);
      if (life_ != nullptr) life_->Pulse();
      begins_anew = life_ != nullptr && life_->begins_anew();
    }
    if (begins_anew) Restart();
  }
  // Its disk is gone, and another process begins with an empty one, under the same number.
  void LoseDisk() {
    Take();
    disk_.files = std::make_unique<FaultyFileSystem>();
    disk_.place.Clear();
    disk_.lost = 0;
    MutexLock lock(&mu_);
    life_ = std::make_shared<FollowerLife>(&disk_, snapshots_, net_);
  }
  absl::Status failure() {
    MutexLock lock(&mu_);
    return life_ == nullptr ? absl::OkStatus() : life_->failure();
  }
  uint64_t frontier() {
    MutexLock lock(&mu_);
    ParamServer* const params = life_->accepting();
    return params == nullptr ? 0 : params->members()->frontier();
  }
  std::string Describe() {
    MutexLock lock(&mu_);
    ParamServer* const params = life_->accepting();
    return params == nullptr ? "no place yet" : DescribeParams(*params);
  }

 private:
  std::shared_ptr<FollowerLife> Take() {
    MutexLock lock(&mu_);
    return std::exchange(life_, nullptr);
  }

  FaultyFileSystem* const snapshots_;
  MemoryNet* const net_;
  FollowerDisk disk_;  // Of the life's; between two lives of Restart().

  Mutex mu_;
  std::shared_ptr<FollowerLife> life_;  // Null while there is none.
};

}  // namespace recon
