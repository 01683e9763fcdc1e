#pragma once

#include <algorithm>
#include <atomic>
#include <map>
#include <memory>
#include <string>
#include <utility>

#include "common/base/clock.h"
#include "common/base/lane.h"
#include "common/base/limits.h"
#include "common/base/mutex.h"
#include "common/metrics/metrics.h"
#include "server/cluster/cluster.h"
#include "server/cluster/mixed_state.h"
#include "server/durability/recovery.h"
#include "server/process/place_recovery.h"
#include "server/process/recovery.h"
#include "server/recovery/log_replay.h"
#include "server/recovery/rollback.h"
#include "server/recovery/snapshot_service.h"
#include "server/recovery/state_recovery.h"
#include "tests/server/cluster/follower_node.h"

namespace recon {

// What of the head outlives its process.
struct HeadDisk {
  HeadDisk() {
    for (uint32_t server = 0; server < kClusterServers; ++server) table.add_id(ServerIdOf(server));
  }

  uint64_t epoch = 1;
  ServerTable table;    // Who has which place is known from the first start.
  uint64_t lost = 0;    // As ControlDb has it.
  RollbackRecord back;  // The last one, done or to be done.
  std::unique_ptr<FaultyFileSystem> files = std::make_unique<FaultyFileSystem>();
};

// What a worker is told that registers.
struct Registered {
  uint64_t cluster_epoch = 0;
  uint64_t step = 0;  // The first that it may begin.
};

// The head's process without ports, from its start to its death: parameters, log, snapshots, cluster, and as
// much of a coordinator as decides when an epoch begins and who is a member.
class HeadLife {
 public:
  HeadLife(HeadDisk* disk, FaultyFileSystem* snapshots, MemoryNet* net, int bound)
      : disk_(disk),
        net_(net),
        rules_(RulesOf(bound, disk)),
        epoch_(disk->epoch),
        store_(snapshots),
        cluster_(ClusterOptions(), disk->table),
        params_(ParamOptions(), &metrics_),
        snapshots_(SnapshotOptions(), &params_, &store_, &metrics_, &cluster_),
        lane_("control") {
    Recover();
    Cluster::Events events;
    events.changed = [this] { OnServersChanged(); };
    events.save = [this](const ServerTable& table) {
      disk_->table = table;
      return absl::OkStatus();
    };
    cluster_.Start(&params_, &lane_, std::move(events));
    lane_.RunAndWait([this] { cluster_.SetModel(SixShards()); });
    net_->Listen(&cluster_);
  }
  ~HeadLife() {
    Kill();
    // Whoever waits in it for a server's part.
    for (const auto& link : broken_) cluster_.OnClosed(link);
    params_.BeginDrain();
  }

  // From now on nothing that it does is seen outside.
  void Kill() {
    if (!alive_->exchange(false)) return;
    store_.Kill();
    broken_ = net_->Listen(nullptr);
  }
  void Handle(const ByteChain& frame, Incarnation sender, FrameDone done) {
    params_.Handle(
        frame, Now(), [] {},
        [alive = alive_, done = std::move(done)](absl::StatusOr<ByteChain> reply) {
          if (!alive->load()) reply = absl::UnavailableError("the head is dead");
          done(reply);
        },
        {sender});
  }

  // What the coordinator does when a worker registers: `resumes` a push that it has begun.
  absl::StatusOr<Registered> Register(WorkerId worker, Incarnation incarnation, uint64_t next_step,
                                      bool resumes) {
    absl::StatusOr<Registered> registered = absl::UnavailableError("not all servers are there");
    lane_.RunAndWait([&] {
      if (!cluster_.state().live) return;
      Incarnation& member = members_[worker];
      if (member != Incarnation() && member != incarnation) Leave(worker);
      members_[worker] = incarnation;
      params_.members()->Admit(worker, incarnation, next_step);
      cluster_.Admit(worker, incarnation, next_step);
      registered = Registered{epoch_, params_.members()->Activate(worker, next_step, resumes)};
    });
    return registered;
  }
  // When its heartbeat comes.
  void NoteAcknowledged(WorkerId worker, Incarnation incarnation, uint64_t next_step) {
    lane_.RunAndWait([&] {
      const auto member = members_.find(worker);
      if (member != members_.end() && member->second == incarnation) {
        params_.members()->NoteAcknowledged(worker, next_step);
      }
    });
  }
  // And when it leaves, or is evicted.
  void Expel(WorkerId worker) {
    lane_.RunAndWait([&] {
      members_.erase(worker);
      Leave(worker);
    });
  }
  void Snapshot(const std::string& reason = "requested") {
    snapshots_.Take(reason, [](const absl::StatusOr<SnapshotReply>&) {});
  }
  // The same, and waits for it.
  absl::StatusOr<SnapshotReply> TakeSnapshot(const std::string& reason) {
    absl::StatusOr<SnapshotReply> taken;
    lane_.RunAndWait([&] {  // Behind what an epoch has begun with.
      snapshots_.Take(reason, [&taken](const absl::StatusOr<SnapshotReply>& reply) { taken = reply; });
    });
    snapshots_.Flush();
    return taken;
  }
  void Pulse() {
    params_.Tick(Now());
    lane_.RunAndWait([this] { cluster_.Tick(Now()); });
  }
  // It has lost something that others have, or they have: the next process goes back with all of them.
  bool recovers_anew() const { return recovers_anew_.load(); }
  absl::Status failure() const { return failure_; }
  ServersState state() const { return cluster_.state(); }
  std::string Missing() const { return cluster_.Missing(); }
  uint64_t frontier() { return params_.members()->frontier(); }
  std::string Describe() { return DescribeParams(params_); }

 private:
  static ApplyRules RulesOf(int bound, HeadDisk* disk) {
    ApplyRules rules = ClusterRules(bound, ++disk->epoch);
    rules.history = disk->back.history();
    return rules;
  }
  Cluster::Options ClusterOptions() const {
    Cluster::Options options;
    options.assignment = ClusterAssignment(rules_);
    options.silence_max = absl::Hours(1);
    options.replace_after = absl::Hours(1);
    return options;
  }
  ParamServer::Options ParamOptions() {
    ParamServer::Options options;
    options.rules = rules_;
    options.apply_threads = 1;
    options.servers = kClusterServers;
    options.followers = &cluster_;
    return options;
  }
  static SnapshotService::Options SnapshotOptions() {
    SnapshotService::Options options;
    options.writer.keep.last = 2;
    options.writer.threads = 1;
    options.optimizer = "sgd";
    options.job_id = kClusterJob;
    return options;
  }

  // As HeadRecovery does it.
  void Recover() {
    failure_ = disk_->files->CreateDirectories("/log");
    const SnapshotReader reader(&store_);
    const auto newest = LoadNewest(reader, [](const Manifest&) { return absl::OkStatus(); });
    if (newest.ok() && *newest && (*newest)->history() < disk_->back.history())
      return GoBack(reader, **newest);
    place_.lost = !*HasLog(disk_->files.get(), "/log");
    RecoveryOptions options;
    options.servers = kClusterServers;
    options.restored = [this](const Manifest& snapshot) {
      snapshots_.NoteRestored(snapshot);
      place_.generation = snapshot.generation();
      return true;
    };
    options.leave_log = [](const Manifest&) { return absl::InternalError("the log is of other servers"); };
    ControlState control;
    const RecoveryTarget target{&params_, &store_, disk_->files.get(), "/log", &metrics_};
    const absl::StatusOr<Recovered> recovered = recon::Recover(options, target, &control);
    failure_.Update(recovered.status());
    if (!recovered.ok()) return;
    if (!recovered->snapshot) return failure_.Update(absl::InternalError("there is no snapshot"));
    if (recovered->replayed && NeedsSnapshotFirst(*recovered->replayed, false, params_.position().sequence)) {
      must_snapshot_ = true;
      params_.log()->AwaitSnapshot();
    }
    place_.lost = place_.lost || place_.generation == disk_->lost;
    disk_->lost = LostAt(disk_->lost, place_);
    if (place_.lost) {
      must_snapshot_ = true;
      params_.log()->AwaitSnapshot();
    }
    OpenLog();
  }
  void GoBack(const SnapshotReader& reader, const Manifest& newest) {
    const auto back =
        RollBack(disk_->back, reader, disk_->files.get(), "/log", newest, ControlState(), &params_);
    failure_.Update(back.status());
    if (!back.ok()) return;
    disk_->back.set_end(back->end);
    disk_->back.set_first_step(back->first_step);
    cluster_.SetWayBack({disk_->back.generation(), disk_->back.first_step(), false});
    snapshots_.NoteRestored(back->base);
    disk_->lost = 0;
    must_snapshot_ = true;
    params_.log()->AwaitSnapshot();
    OpenLog();
  }
  void OpenLog() {
    PushLog::Options log;
    log.directory = "/log";
    log.segment_bytes = 16 << 10;
    auto opened = PushLog::Open(log, disk_->files.get(), rules_, params_.position().sequence + 1);
    failure_.Update(opened.status());
    if (opened.ok()) params_.log()->Set(*std::move(opened));
  }
  // As LostDisks does it.
  bool GoesBack() {
    if (recovers_anew_.load()) return true;
    std::vector<PlaceState> places = cluster_.state().places;
    places.insert(places.begin(), {0, place_.lost, place_.generation, params_.position().sequence, 0, 0});
    place_.lost = false;
    const std::optional<uint64_t> oldest = OldestOfLost(places);
    if (!oldest) return false;
    const auto snapshot = SnapshotReader(&store_).ReadManifest(Generation(*oldest));
    if (!snapshot.ok() || AheadOf(*snapshot, places).empty()) return false;
    const uint64_t frontier = std::max(params_.members()->frontier(), cluster_.state().highest_frontier);
    disk_->back.set_history(rules_.history + 1);
    disk_->back.set_generation(*oldest);
    disk_->back.set_first_step(frontier + limits::kStepsAheadMax + 1);
    recovers_anew_.store(true);
    return true;
  }

  // Lane. As Coordinator::OnServersChanged() does it.
  void OnServersChanged() {
    const ServersState others = cluster_.state();
    if (others.live || !others.complete || GoesBack()) return;
    epoch_ = disk_->epoch = std::max({disk_->epoch, epoch_, others.highest_epoch}) + 1;
    const uint64_t known = params_.members()->frontier() + (rules_.bound == 0 ? 1 : 0);
    if (rules_.bound >= 0 && others.highest_frontier > known) {
      params_.members()->SkipTo(others.highest_frontier);
    }
    cluster_.BeginEpoch(epoch_);
    params_.SetClusterEpoch(epoch_);
    if (must_snapshot_ || others.needs_snapshot) Snapshot("recovered");
    must_snapshot_ = false;
  }
  void Leave(WorkerId worker) {
    params_.members()->Expel(worker);
    cluster_.Expel(worker);
  }

  HeadDisk* const disk_;
  MemoryNet* const net_;
  const ApplyRules rules_;
  const std::shared_ptr<std::atomic<bool>> alive_ = std::make_shared<std::atomic<bool>>(true);
  absl::Status failure_;
  std::vector<std::shared_ptr<MemoryLink>> broken_;  // By its death.

  // Lane only.
  uint64_t epoch_;
  bool must_snapshot_ = false;
  RecoveredPlace place_;
  std::atomic<bool> recovers_anew_{false};
  std::map<WorkerId, Incarnation> members_;

  Metrics metrics_;
  KillableStore store_;
  Cluster cluster_;
  ParamServer params_;
  SnapshotService snapshots_;
  Lane lane_;  // Last: what it runs needs the rest.
};

// A head that is killed and started again. Thread-safe, but for Restart().
class HeadNode {
 public:
  HeadNode(FaultyFileSystem* snapshots, MemoryNet* net, int bound)
      : snapshots_(snapshots), net_(net), bound_(bound) {
    life_ = std::make_unique<HeadLife>(&disk_, snapshots_, net_, bound_);
  }

  void Restart() {
    std::unique_ptr<HeadLife> dying;
    {
      MutexLock lock(&mu_);
      dying = std::move(life_);
    }
    dying->Kill();
    std::unique_ptr<FaultyFileSystem> left = disk_.files->Copy();
    dying = nullptr;
    disk_.files = std::move(left);
    MutexLock lock(&mu_);
    life_ = std::make_unique<HeadLife>(&disk_, snapshots_, net_, bound_);
  }
  // Its disk is gone, but for who has which place: snapshots have that.
  void LoseDisk() {
    std::unique_ptr<HeadLife> dying;
    {
      MutexLock lock(&mu_);
      dying = std::move(life_);
    }
    dying->Kill();
    dying = nullptr;
    disk_.files = std::make_unique<FaultyFileSystem>();
    MutexLock lock(&mu_);
    life_ = std::make_unique<HeadLife>(&disk_, snapshots_, net_, bound_);
  }
  // Looks at the time, and begins anew if the job is to go back.
  void Pulse() {
    bool anew = false;
    With([&anew](HeadLife* life) {
      life->Pulse();
      anew = life->recovers_anew();
    });
    if (anew) Restart();
  }
  uint64_t history() const { return disk_.back.history(); }
  // Calls `use` with the process; false if there is none.
  template <typename Use>
  bool With(Use use) {
    MutexLock lock(&mu_);
    if (life_ == nullptr) return false;
    use(life_.get());
    return true;
  }
  void Handle(const ByteChain& frame, Incarnation sender, FrameDone done) {
    MutexLock lock(&mu_);
    if (life_ == nullptr) return done(absl::UnavailableError("the head is down"));
    life_->Handle(frame, sender, std::move(done));
  }

 private:
  FaultyFileSystem* const snapshots_;
  MemoryNet* const net_;
  const int bound_;
  HeadDisk disk_;

  Mutex mu_;
  std::unique_ptr<HeadLife> life_;  // Null while there is none.
};

}  // namespace recon
