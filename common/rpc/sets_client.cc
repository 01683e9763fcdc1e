#include "common/rpc/sets_client.h"

#include <chrono>

#include "absl/status/status.h"
#include "common/base/status_macros.h"
#include "common/rpc/own_token.h"
#include "common/rpc/status_codes.h"
#include "proto/collective.grpc.pb.h"

namespace recon {
namespace {

absl::StatusOr<SetsReply> Ask(const std::shared_ptr<grpc::Channel>& channel, const Caller& caller,
                              grpc::ClientContext* context) {
  const auto stub = Collective::NewStub(channel);
  caller.AddTo(context);
  context->set_deadline(std::chrono::system_clock::now() + std::chrono::seconds(2));
  SetsReply reply;
  const grpc::Status status = stub->Sets(context, SetsRequest(), &reply);
  if (!status.ok()) return FromGrpc(status);
  return reply;
}

}  // namespace

absl::StatusOr<SetsReply> AskForSets(const std::shared_ptr<grpc::Channel>& channel, const Caller& caller) {
  grpc::ClientContext context;
  return Ask(channel, caller, &context);
}

absl::StatusOr<SetsReply> AskForSets(const std::string& server, const TlsFlags& tls) {
  RECON_ASSIGN_OR_RETURN(const std::shared_ptr<grpc::Channel> channel, ConnectTo(server, tls));
  RECON_ASSIGN_OR_RETURN(Caller caller, CallerFor(tls));
  grpc::ClientContext context;
  absl::StatusOr<SetsReply> reply = Ask(channel, caller, &context);
  if (!absl::IsPermissionDenied(reply.status()) || !caller.token.empty()) return reply;
  caller.token = OwnTokenOf(context);
  return caller.token.empty() ? reply : AskForSets(channel, caller);
}

}  // namespace recon
