#pragma once

#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "common/transport/connected_processes.h"
#include "common/transport/transport.h"

namespace recon {

// The server's end of UCX: connections whose requests go to a handler, on UCX's thread.
//
// Threads: any.
// Shutdown: the destructor ends all connections; replies that come later are dropped.
class UcxListener {
 public:
  // `connected`, which may be null, is told of connections, and outlives the listener. Port 0 is any that is
  // free. InvalidArgument for an address that is none, FailedPrecondition if it cannot be listened on, or
  // without UCX.
  static absl::StatusOr<std::unique_ptr<UcxListener>> Start(const std::string& address,
                                                            RequestHandler handler,
                                                            ConnectedProcesses* connected = nullptr);
  virtual ~UcxListener() = default;

  virtual int port() const = 0;
  // It listens on all addresses of the machine.
  virtual bool any_host() const = 0;
  virtual int connections() const = 0;
};

}  // namespace recon
