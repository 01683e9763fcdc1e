#pragma once

#include <memory>

#include "absl/status/status.h"
#include "common/base/lane.h"
#include "common/rpc/caller.h"
#include "grpcpp/channel.h"
#include "proto/cluster.grpc.pb.h"
#include "server/cluster/links.h"

namespace recon {

// A server's gRPC stream to its head.
class GrpcHeadLink final : public HeadLink {
 public:
  // The head is shown `caller`.
  GrpcHeadLink(const std::shared_ptr<grpc::Channel>& channel, const Caller& caller);

  void Send(ServerReport report) override;
  bool Receive(ServerCommand* command) override;
  void Cancel() override;
  absl::Status Finish() override;

 private:
  grpc::ClientContext context_;
  std::unique_ptr<ShardServers::Stub> stub_;
  std::unique_ptr<grpc::ClientReaderWriter<ServerReport, ServerCommand>> stream_;
  Lane writer_;
};

}  // namespace recon
