#include "common/rpc/sets_client.h"

#include <chrono>

#include "common/base/status_macros.h"
#include "common/rpc/status_codes.h"
#include "proto/collective.grpc.pb.h"

namespace recon {

absl::StatusOr<SetsReply> AskForSets(const std::shared_ptr<grpc::Channel>& channel, const Caller& caller) {
  const auto stub = Collective::NewStub(channel);
  grpc::ClientContext context;
  caller.AddTo(&context);
  context.set_deadline(std::chrono::system_clock::now() + std::chrono::seconds(2));
  SetsReply reply;
  const grpc::Status status = stub->Sets(&context, SetsRequest(), &reply);
  if (!status.ok()) return FromGrpc(status);
  return reply;
}

absl::StatusOr<SetsReply> AskForSets(const std::string& server, const TlsFlags& tls) {
  RECON_ASSIGN_OR_RETURN(const std::shared_ptr<grpc::Channel> channel, ConnectTo(server, tls));
  RECON_ASSIGN_OR_RETURN(const Caller caller, CallerFor(tls));
  return AskForSets(channel, caller);
}

}  // namespace recon
