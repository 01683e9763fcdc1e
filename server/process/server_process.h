#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "common/base/data_lock.h"
#include "common/metrics/metrics.h"
#include "common/rpc/connections.h"
#include "common/rpc/param_service.h"
#include "common/rpc/rpc_server.h"
#include "common/storage/object_store.h"
#include "common/transport/connected_processes.h"
#include "common/web/http_server.h"
#include "server/data_plane/param_server.h"
#include "server/durability/control_db.h"
#include "server/durability/push_log.h"
#include "server/process/frame_listeners.h"
#include "server/process/known_workers.h"
#include "server/process/recovery.h"
#include "server/process/server_flags.h"
#include "server/rpc/collective_service.h"

namespace recon {

// What every recon-server has, the head of a job and those that join it: the lock of its data directory, the
// control database, the store of snapshots, the parameters with their push log, and the ports. A role (Head,
// Follower) opens these one after the other, in the order in which the methods stand here; each is there, and
// its accessor not null, once it has been opened.
//
// Threads: one opens and closes; accessors on any thread once that has happened. Frames come on the threads
// of their transports. Shutdown: StopServing(), before anything is destroyed that handlers and services use.
class ServerProcess {
 public:
  explicit ServerProcess(const ServerFlags& flags);

  // Makes the data directory, for this user only, and locks it. FailedPrecondition if a process has it.
  // InvalidArgument for --listen and certificates that mean nothing; nothing has been touched then.
  absl::Status LockData();
  // Holds another directory, too, for as long as the data directory.
  absl::Status Lock(const std::string& directory);
  // DataLoss if the database is damaged.
  absl::Status OpenControlDb();
  // `writer`: this process clears away what is left of writers.
  absl::Status OpenStore(const std::string& url, bool writer);
  // `options`: but for what the flags and the machine say.
  void MakeParams(ParamServer::Options options);

  std::string log_directory() const { return flags_.data + "/log"; }
  // The options of a push log, and its directory. InvalidArgument for a budget too small to work with.
  absl::StatusOr<PushLog::Options> MakeLogOptions(bool sync, uint64_t segment_bytes) const;
  // Logs from now on what params() takes, by these rules.
  absl::Status StartLog(const PushLog::Options& options, const ApplyRules& rules);

  // params() gets frames from now on. Before that whoever sends one is told to come again: Unavailable.
  void AcceptFrames() { accepting_.store(params_.get(), std::memory_order_release); }
  // params() if it gets frames, else null. Any thread.
  ParamServer* accepting() const { return accepting_.load(std::memory_order_acquire); }
  // Opens the port of metrics, and the ways for frames beside gRPC's. `id`: under which workers find shared
  // memory. `connected` is told of connections; `known`: who is no stranger before there are parameters. Both
  // may be null, and outlive this.
  absl::Status StartListeners(uint64_t id, ConnectedProcesses* connected,
                              const KnownWorkers* known = nullptr);
  // Opens the port with these services, the parameters' and that of collectives, and writes <data>/ADDRESS
  // before the first call is answered: who looks for a token compares it. Before: StartListeners().
  absl::Status StartRpc(std::vector<grpc::Service*> services, CollectiveService::Options collective,
                        RevokedClients revoked);
  // No frame and no call comes any more, and those that run have ended, at the latest after so long. Again is
  // no harm.
  void StopServing(absl::Duration timeout);

  const ServerFlags& flags() const { return flags_; }
  void set_flags(ServerFlags flags) { flags_ = std::move(flags); }
  const TlsFlags& tls() const { return tls_; }
  Metrics* metrics() { return &metrics_; }
  Connections* connections() { return &connections_; }
  ControlDb* db() const { return db_.get(); }
  // May be shared by those whom nobody waits for at the end.
  const std::shared_ptr<ObjectStore>& store() const { return store_; }
  ParamServer* params() const { return params_.get(); }
  const FrameListeners& frames() const { return frames_; }
  RpcServer* rpc() const { return rpc_.get(); }

 private:
  absl::Status WriteAddress(const std::string& address) const;

  // In the order of their construction; destroyed in reverse.
  ServerFlags flags_;
  const TlsFlags tls_;
  std::vector<DataLock> locks_;
  Metrics metrics_;
  std::unique_ptr<HttpServer> metrics_server_;
  Connections connections_;
  std::shared_ptr<ObjectStore> store_;
  std::unique_ptr<ControlDb> db_;
  std::unique_ptr<ParamServer> params_;
  std::atomic<ParamServer*> accepting_{nullptr};
  FrameListeners frames_;
  std::unique_ptr<ParamService> param_service_;
  std::unique_ptr<CollectiveService> collective_service_;
  std::unique_ptr<RpcServer> rpc_;
};

// What a process recovers, from where: its store is open, its parameters made, and its log is not open yet.
RecoveryTarget TargetOf(ServerProcess* process);

}  // namespace recon
