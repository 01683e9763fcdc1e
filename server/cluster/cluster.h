#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "common/base/lane.h"
#include "common/base/mutex.h"
#include "proto/cluster.pb.h"
#include "proto/control.pb.h"
#include "server/data_plane/param_server.h"

namespace recon {

// The way from the head to one other server.
class ServerLink {
 public:
  virtual ~ServerLink() = default;
  // Commands arrive in this order, or the link ends. Thread-safe; never waits.
  virtual void Send(const ServerCommand& command) = 0;
  virtual void Close(const absl::Status& why) = 0;
};

// The head's view of a job's other servers: who has which place (a number from 1 on, whose shards
// AssignShards() says), who is there, and what they have to be told. A place stays with its server's data
// directory; when that has been gone for long and another server waits, the place is given to it.
//
// Whenever all places are taken and a server has come (back), the coordinator begins a new cluster epoch:
// what was said to servers before may have been lost, so that workers register again and everything is said
// anew. Only closings of steps cannot be said anew by anyone else; they are kept until all servers have them
// in their logs.
//
// Threads: "lane": on the control lane only. The rest is thread-safe. It calls the ParamServer without its
// own lock, and is called by it under that one's.
class Cluster final : public Followers {
 public:
  struct Options {
    // What all servers are told alike.
    Assignment assignment;
    // A server that says nothing for so long is given up until it comes again;
    absl::Duration silence_max = absl::Seconds(3);
    // its place is another's after so long.
    absl::Duration replace_after = absl::Minutes(1);
  };
  struct Events {
    // Called on the lane when a server has become ready, or has its initial values.
    std::function<void()> changed;
    // Makes the table of places durable. Lane.
    std::function<absl::Status(const ServerTable&)> save;
  };

  // `table` as it was saved: empty, or with an entry for each of the servers.
  Cluster(const Options& options, const ServerTable& table);
  // Before links come. The pointers must outlive the cluster.
  void Start(ParamServer* params, Lane* lane, Events events);

  // A link's reports, in order, and its end.
  void OnReport(const std::shared_ptr<ServerLink>& link, const ServerReport& report);
  void OnClosed(const std::shared_ptr<ServerLink>& link);

  // Lane. The ParamServer has this model: servers can be told their places.
  void SetModel(const ModelSpec& model);
  // Lane. Gives up silent servers, and gives their places to others.
  void Tick(absl::Time now);
  // Every place has a server that has restored its state.
  bool complete() const;
  // And all have begun the epoch.
  bool live() const;
  // Who is missing, as a sentence.
  std::string Missing() const;
  // Lane. The highest epoch and step that the servers know of; begins `epoch` on all.
  uint64_t highest_epoch() const;
  uint64_t highest_frontier() const;
  void BeginEpoch(uint64_t epoch);
  bool all_have_values() const;
  // A server takes no pushes until there is a snapshot of what it has now.
  bool needs_snapshot() const;

  void Admit(WorkerId worker, Incarnation incarnation, uint64_t next_step);
  void Expel(WorkerId worker);
  void AwaitInitialValues(WorkerId worker);

  void OnClosing(uint32_t server, const StepClosing& closing) override;
  void OnFrontier(uint64_t frontier, bool anyone_active) override;

  // A snapshot: begin it, say where the cut is, and wait for the parts, in the order of places. Unavailable
  // if a server is missing or goes meanwhile. One at a time.
  absl::Status BeginSnapshot(uint64_t generation);
  void SendCut(bool background);
  absl::StatusOr<std::vector<SnapshotPart>> CollectParts();
  // Just before it is published: not OK if a server was lost since, which may go on from the snapshot before.
  absl::Status EndSnapshot();
  void NotePublished();
  // The trace that is recorded, and for how long yet; 0: none is.
  void TellOfTrace(uint64_t trace, absl::Duration left);
  void Hurry(int change);
  // The longest of all servers.
  double replay_seconds() const;
  // Whether one of the others wants a snapshot, as JobLog::wants_snapshot() says.
  bool log_wants_snapshot() const;

  // Servers take no pushes any more; false if some have not finished those under way by then.
  bool Drain(absl::Duration timeout);
  // The servers' processes end.
  void Shutdown();

  uint32_t servers() const { return servers_; }
  // From place 1 on.
  std::vector<ServerAddress> Addresses() const;
  std::vector<ServerStatus> Status(absl::Time now) const;

 private:
  enum class State { kAwaited, kAssigned, kReady, kLive };
  struct Place {
    uint64_t id = 0;
    std::shared_ptr<ServerLink> link;
    State state = State::kAwaited;
    ServerHello hello;
    ServerReady ready;
    ServerProgress progress;
    bool drained = false;
    std::multimap<uint64_t, std::string> closings;  // By step: those that may not be in its log.
    absl::Time last_heard = absl::InfinitePast();   // Of a link; or when it was lost.
  };
  struct Spare {
    std::shared_ptr<ServerLink> link;
    ServerHello hello;
    absl::Time last_heard;
  };

  void Join(const std::shared_ptr<ServerLink>& link, const ServerHello& hello, absl::Time now);
  void OnReady(const std::shared_ptr<ServerLink>& link, const ServerReady& ready);
  // The place that a server had, or may have now; 0: none.
  uint32_t PlaceFor(const ServerHello& hello) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void Take(uint32_t place, const std::shared_ptr<ServerLink>& link, const ServerHello& hello,
            absl::Time now);
  // Whether its data directory has that place's state.
  bool Resumes(uint32_t place, const ServerHello& hello) const;
  void Assign(uint32_t place) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // 0: none.
  uint32_t PlaceOf(const ServerLink* link) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void Lose(uint32_t place) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void Broadcast(const ServerCommand& command) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  bool AllAtLeast(State state) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);

  // Set in the constructor and by Start().
  const Options options_;
  const uint32_t servers_;
  ParamServer* params_ = nullptr;
  Lane* lane_ = nullptr;
  Events events_;

  mutable Mutex mu_;
  std::vector<Place> places_ ABSL_GUARDED_BY(mu_);  // Element 0 is the head: unused but for its being there.
  std::vector<Spare> spares_ ABSL_GUARDED_BY(mu_);
  std::optional<ModelSpec> model_ ABSL_GUARDED_BY(mu_);

  std::optional<Frontier> frontier_ ABSL_GUARDED_BY(mu_);
  uint64_t initial_values_round_ ABSL_GUARDED_BY(mu_) = 0;
  // The snapshot under way.
  uint64_t generation_ ABSL_GUARDED_BY(mu_) = 0;
  uint64_t attempt_ ABSL_GUARDED_BY(mu_) = 0;
  int hurry_ ABSL_GUARDED_BY(mu_) = 0;
  std::map<uint32_t, SnapshotPart> parts_ ABSL_GUARDED_BY(mu_);
  absl::Status snapshot_failure_ ABSL_GUARDED_BY(mu_);
};

}  // namespace recon
