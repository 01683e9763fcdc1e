#pragma once

#include <atomic>
#include <list>
#include <memory>
#include <string>
#include <thread>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "common/shm/shm_peer.h"
#include "common/transport/connected_processes.h"
#include "common/transport/transport.h"

namespace recon {

// The server's end of shared memory: connections to workers on this machine, whose requests go to a handler
// on the connection's thread. A connection that ends gives its memory back when the last request that came
// over it is applied, and nobody has a reply of it any more.
//
// Threads: Start(), the destructor and connections() on any; `handler` runs on the connections' threads.
// Shutdown: the destructor ends all connections; replies that come later are dropped.
class ShmListener {
 public:
  // `connected`, which may be null, is told of connections, and outlives the listener. Errors are
  // ListenForShm()'s.
  static absl::StatusOr<std::unique_ptr<ShmListener>> Start(const std::string& name, RequestHandler handler,
                                                            ConnectedProcesses* connected = nullptr);
  ~ShmListener();
  ShmListener(const ShmListener&) = delete;
  ShmListener& operator=(const ShmListener&) = delete;

  int connections() const { return open_.load(); }

 private:
  struct Connection {
    std::atomic<bool> ended{false};
    Incarnation sender;
    std::unique_ptr<ShmPeer> peer;  // Last: its thread uses the rest.
  };

  ShmListener(OwnedFd listener, OwnedFd wake, RequestHandler handler, ConnectedProcesses* connected);
  void Run();
  void Accept();
  void SayRefused(const absl::Status& why);
  void OnRequest(Connection* connection, const ByteChain& message);
  void Reap();

  const OwnedFd listener_;
  const OwnedFd wake_;
  const RequestHandler handler_;
  ConnectedProcesses* const connected_;
  std::atomic<bool> stopping_{false};
  std::atomic<int> open_{0};
  std::list<Connection> connections_;  // The accepting thread's.
  absl::Time last_refusal_ = absl::InfinitePast();
  std::thread thread_;
};

}  // namespace recon
