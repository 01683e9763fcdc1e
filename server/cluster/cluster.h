#pragma once

#include <atomic>
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
#include "server/cluster/links.h"
#include "server/cluster/place_table.h"
#include "server/cluster/server_links.h"
#include "server/cluster/snapshot_parts.h"
#include "server/cluster/state_parts.h"
#include "server/data_plane/param_server.h"

namespace recon {

// The head's view of a job's other servers: it gives each a place (PlaceTable; whose shards a place has
// AssignShards() says), hears their reports, and tells them what the coordinator and the ParamServer decide
// (ServerLinks). A place stays with its server's data directory; when that has been gone for long and another
// server waits, the place is given to it.
//
// Whenever all places are taken and a server has come (back), the coordinator begins a new cluster epoch:
// what was said to servers before may have been lost, so that workers register again and everything is said
// anew. Only closings of steps cannot be said anew by anyone else; they are kept until all servers have them
// in their logs.
//
// A report that cannot be (report_checks.h) ends its server's link, and changes nothing else.
//
// Threads: "lane": on the control lane only. The rest is thread-safe. It calls the ParamServer without a lock
// of its own, and is called by it under that one's.
class Cluster final : public Followers, public ServerReports {
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
  // What servers are to recover, beside their places.
  struct WayBack {
    uint64_t generation = 0;    // The job goes back to this snapshot; 0: it does not.
    uint64_t first_step = 0;    // No synchronous step before this one is begun then.
    bool count_beyond = false;  // Servers say what they have beyond the newest snapshot.
  };
  // Before links come.
  void SetWayBack(const WayBack& way);
  // Before links come. The pointers must outlive the cluster.
  void Start(ParamServer* params, Lane* lane, Events events);

  void OnReport(const std::shared_ptr<ServerLink>& link, const ServerReport& report) override;
  void OnClosed(const std::shared_ptr<ServerLink>& link) override;

  // Lane. The ParamServer has this model: servers can be told their places.
  void SetModel(const ModelSpec& model);
  // Lane. Gives up silent servers, and gives their places to others.
  void Tick(absl::Time now);
  ServersState state() const;
  // For state().
  void NoteMixedState(const std::string& mixed_state);
  // Which servers are missing, and why, as ServerLinks says it, and who takes whose place when.
  std::string Missing() const;
  // All servers, those without a place among them, are told what the job waits for; empty: it moves. Several
  // times a second: who does not hear it knows that the head is silent.
  void TellWaits(const std::string& waits_for);
  // Lane. On all of them, the ones that have come back among them.
  void BeginEpoch(uint64_t epoch) { links_.BeginEpoch(epoch); }

  void Admit(WorkerId worker, Incarnation incarnation, uint64_t next_step);
  void Expel(WorkerId worker);
  // A snapshot under way fails: it would have other values.
  void AwaitInitialValues(WorkerId worker);

  void OnClosing(uint32_t server, const StepClosing& closing) override;

  // What the servers have to do with snapshots, and with the state of workers that have the optimizer.
  SnapshotParts* snapshot() { return &snapshot_; }
  StateParts* workers_state() { return &workers_state_; }
  // The trace that is recorded, and for how long yet; 0: none is.
  void TellOfTrace(uint64_t trace, absl::Duration left);

  // Servers take no pushes any more; false if some have not finished those under way by then.
  bool Drain(absl::Duration timeout) { return links_.Drain(timeout); }
  // This process ends: from now on it is no news that servers go. `servers_too`: so do their processes, in
  // good order.
  void End(bool servers_too);

  uint32_t servers() const { return servers_; }
  // From place 1 on.
  std::vector<ServerAddress> Addresses() const;
  // Of each place from 1 on, as its server said last.
  std::vector<ServerHello> Hellos() const { return links_.Hellos(); }
  std::vector<ServerStatus> Status(absl::Time now) const;

 private:
  void OnFrontier(uint64_t frontier, bool anyone_active) override;
  void OnStateCommitted(uint64_t upload) override { workers_state_.Commit(upload); }

  // Lane.
  void Join(const std::shared_ptr<ServerLink>& link, const ServerHello& hello, absl::Time now);
  void Take(uint32_t place, const std::shared_ptr<ServerLink>& link, const ServerHello& hello,
            absl::Time now);
  void OnReady(const std::shared_ptr<ServerLink>& link, const ServerReady& ready);
  void OnInitialValues(const std::shared_ptr<ServerLink>& link, uint64_t round);

  // What the place has reported to others than the links. Errors are those of report_checks.h.
  absl::Status Hear(const std::shared_ptr<ServerLink>& link, uint32_t place, const ServerReport& report);
  // What becomes of places without a server: who takes each, when, and what is lost then. Not of those for
  // which nobody waits.
  std::map<uint32_t, std::string> Outlooks(absl::Time now) const;
  // The same of all such places, for whoever has just begun to wait.
  std::string OutlookForSpare(absl::Time now) const;
  void SendToSpares(const ServerCommand& command) const;
  // Nothing is heard of the link any more.
  void SendAway(const std::shared_ptr<ServerLink>& link, const absl::Status& why);

  // Set before links come.
  const Options options_;
  Assignment assignment_;
  const uint32_t servers_;
  ParamServer* params_ = nullptr;
  Lane* lane_ = nullptr;
  Events events_;

  SnapshotParts snapshot_;
  StateParts workers_state_;
  ServerLinks links_;
  std::atomic<bool> shut_down_{false};
  std::atomic<bool> ends_{false};

  mutable Mutex mu_;  // A leaf.
  PlaceTable table_ ABSL_GUARDED_BY(mu_);
  std::string mixed_state_ ABSL_GUARDED_BY(mu_);
  std::optional<ModelSpec> model_ ABSL_GUARDED_BY(mu_);
  std::vector<uint32_t> server_of_shard_ ABSL_GUARDED_BY(mu_);  // Empty without a model.
};

}  // namespace recon
