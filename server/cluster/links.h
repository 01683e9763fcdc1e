#pragma once

#include <memory>

#include "absl/status/status.h"
#include "proto/cluster.pb.h"

// The way between a job's head and one of its other servers: commands go one way, reports the other, both in
// order. gRPC carries them between processes (server/rpc/cluster_service.h, server/rpc/head_link.h); tests
// carry them in memory.
namespace recon {

// The head's end.
//
// Threads: thread-safe; never waits, and may be called under the caller's locks.
class ServerLink {
 public:
  virtual ~ServerLink() = default;
  // Commands arrive in this order, or the link ends.
  virtual void Send(const ServerCommand& command) = 0;
  // The server is told why. OnClosed() follows.
  virtual void Close(const absl::Status& why) = 0;
};

// Who hears what comes over the head's ends.
//
// Threads: any; of one link one call after the other. Calls may send on, and close, any link.
class ServerReports {
 public:
  virtual ~ServerReports() = default;
  virtual void OnReport(const std::shared_ptr<ServerLink>& link, const ServerReport& report) = 0;
  // Nothing comes any more. Once.
  virtual void OnClosed(const std::shared_ptr<ServerLink>& link) = 0;
};

// The other server's end.
//
// Threads: Send() and Cancel() on any; Receive() and then Finish() on one.
class HeadLink {
 public:
  virtual ~HeadLink() = default;
  // Reports arrive in this order, or the link ends. Never waits.
  virtual void Send(ServerReport report) = 0;
  // The next command; waits for it. False when the link has ended.
  virtual bool Receive(ServerCommand* command) = 0;
  // Makes Receive() return false soon.
  virtual void Cancel() = 0;
  // Why it has ended. Once, after Receive() has returned false.
  virtual absl::Status Finish() = 0;
};

}  // namespace recon
