#pragma once

#include <memory>
#include <string>

#include "absl/status/status.h"
#include "common/base/lane.h"
#include "common/rpc/own_token.h"
#include "grpcpp/channel.h"
#include "proto/cluster.grpc.pb.h"
#include "server/cluster/links.h"

namespace recon {

// A server's gRPC stream to its head.
class GrpcHeadLink final : public HeadLink {
 public:
  // The head is shown `introduction`, which outlives this.
  GrpcHeadLink(const std::shared_ptr<grpc::Channel>& channel, Introduction* introduction);

  void Send(ServerReport report) override;
  bool Receive(ServerCommand* command) override;
  void Cancel() override;
  absl::Status Finish() override;
  // After Finish(): the head has denied the stream, and there is a token now to begin another one with.
  bool found_token() const { return found_token_; }

 private:
  Introduction* const introduction_;
  std::string shown_;
  bool found_token_ = false;
  grpc::ClientContext context_;
  std::unique_ptr<ShardServers::Stub> stub_;
  std::unique_ptr<grpc::ClientReaderWriter<ServerReport, ServerCommand>> stream_;
  Lane writer_;
};

}  // namespace recon
