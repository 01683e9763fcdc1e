#pragma once

#include <memory>

#include "absl/status/status.h"
#include "common/base/lane.h"
#include "common/rpc/caller.h"
#include "grpcpp/channel.h"
#include "proto/cluster.grpc.pb.h"

namespace recon {

// A server's stream to its head.
//
// Threads: Send() and Cancel() on any; Receive() and then Finish() on one.
class HeadLink {
 public:
  // The head is shown `caller`.
  HeadLink(const std::shared_ptr<grpc::Channel>& channel, const Caller& caller);

  // Reports arrive in this order, or the stream ends. Never waits.
  void Send(ServerReport report);
  // The next command; false when the stream has ended.
  bool Receive(ServerCommand* command);
  // Makes Receive() return false soon.
  void Cancel();
  // Why it has ended. Once, after Receive() has returned false.
  absl::Status Finish();

 private:
  grpc::ClientContext context_;
  std::unique_ptr<ShardServers::Stub> stub_;
  std::unique_ptr<grpc::ClientReaderWriter<ServerReport, ServerCommand>> stream_;
  Lane writer_;
};

}  // namespace recon
