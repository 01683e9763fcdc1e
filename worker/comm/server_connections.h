#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "common/base/mutex.h"
#include "common/rpc/caller.h"
#include "common/rpc/credentials.h"
#include "common/tensor/param_layout.h"
#include "common/transport/send_window.h"
#include "common/transport/transport.h"
#include "proto/control.pb.h"
#include "worker/comm/param_client.h"

namespace recon {

// A worker's connections for frames: one way to each of the job's servers, through shared memory where the
// server offers it and is on this machine.
//
// Threads: thread-safe.
class ServerConnections {
 public:
  struct Options {
    std::string head;  // host:port.
    TlsFlags tls;
    Caller caller;        // Shown to each server.
    int connections = 1;  // To each server.
    bool shared_memory = true;
    bool ucx = false;  // And nothing else.
  };

  // `layout` must outlive the connections.
  ServerConnections(const Options& options, const ParamLayout* layout) : options_(options), layout_(layout) {}

  // Follows what a registration said: connects to servers that are new or elsewhere than before.
  // FailedPrecondition if their number has changed: shards lie elsewhere then.
  absl::Status Adopt(const RegisterReply& reply);
  // Of so many workers this is one: see SendWindow::ShareWith(). Nothing before the first Adopt().
  void ShareWith(uint32_t workers);
  // Cuts all of them, so that what is under way ends.
  void Disconnect();
  // Null before the first Adopt().
  ParamClient* client();
  // Whether frames to all servers go through shared memory.
  bool SharesMemory() const;
  // Of all servers.
  std::set<uint16_t> ports() const;

 private:
  absl::Status ConnectTo(const std::vector<ServerAddress>& servers);
  absl::StatusOr<std::shared_ptr<Transport>> ConnectToServer(const ServerAddress& server) const
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);

  const Options options_;
  const ParamLayout* const layout_;

  mutable Mutex mu_;
  std::vector<ServerAddress> servers_ ABSL_GUARDED_BY(mu_);
  std::shared_ptr<SendWindow> window_ ABSL_GUARDED_BY(mu_);  // Of those over gRPC, together.
  std::vector<std::shared_ptr<Transport>> transports_ ABSL_GUARDED_BY(mu_);
  std::optional<ParamClient> client_;  // Set by the first Adopt().
};

}  // namespace recon
