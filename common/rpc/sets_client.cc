#include "common/rpc/sets_client.h"

#include <chrono>
#include <utility>

#include "common/base/status_macros.h"
#include "common/rpc/status_codes.h"
#include "proto/collective.grpc.pb.h"

namespace recon {

absl::StatusOr<SetsReply> AskForSets(const std::shared_ptr<grpc::Channel>& channel,
                                     Introduction* introduction) {
  const auto stub = Collective::NewStub(channel);
  for (bool again = false;; again = true) {
    grpc::ClientContext context;
    const std::string shown = introduction->AddTo(&context);
    context.set_deadline(std::chrono::system_clock::now() + std::chrono::seconds(2));
    SetsReply reply;
    const grpc::Status status = stub->Sets(&context, SetsRequest(), &reply);
    if (status.ok()) return reply;
    if (again || !introduction->FindsAnother(shown, status, context)) return FromGrpc(status);
  }
}

absl::StatusOr<SetsReply> AskForSets(const std::string& server, const TlsFlags& tls) {
  RECON_ASSIGN_OR_RETURN(const std::shared_ptr<grpc::Channel> channel, ConnectTo(server, tls));
  RECON_ASSIGN_OR_RETURN(Caller caller, CallerFor(tls));
  Introduction introduction(std::move(caller));
  return AskForSets(channel, &introduction);
}

}  // namespace recon
