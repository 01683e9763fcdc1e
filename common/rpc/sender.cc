#include "common/rpc/sender.h"

#include <algorithm>

#include "absl/strings/str_replace.h"
#include "absl/strings/string_view.h"
#include "absl/strings/strip.h"
#include "common/base/status_macros.h"
#include "common/rpc/caller.h"
#include "common/transport/worker_secret.h"
#include "grpcpp/server_context.h"

namespace recon {
namespace {

constexpr size_t kTokenBytesMax = 1024;

// gRPC says "ipv4:10.0.0.2:4711", "ipv6:%5B::1%5D:4711" or "ipv6:%5Bfe80::1%25eth0%5D:4711".
std::string AsFlagsHaveIt(absl::string_view peer) {
  if (!absl::ConsumePrefix(&peer, "ipv4:")) absl::ConsumePrefix(&peer, "ipv6:");
  return absl::StrReplaceAll(peer, {{"%5B", "["}, {"%5D", "]"}, {"%25", "%"}});
}

}  // namespace

absl::StatusOr<Incarnation> SenderOf(const grpc::CallbackServerContext& context) {
  const auto found = context.client_metadata().find(kSecretMetadata);
  if (found == context.client_metadata().end()) return Incarnation();
  const absl::string_view bytes(found->second.data(), found->second.size());
  RECON_ASSIGN_OR_RETURN(const WorkerSecret secret, WorkerSecret::FromBytes(bytes));
  return secret.incarnation();
}

std::string TokenOf(const grpc::CallbackServerContext& context) {
  const auto found = context.client_metadata().find(kTokenMetadata);
  if (found == context.client_metadata().end()) return "";
  return {found->second.data(), std::min(found->second.size(), kTokenBytesMax)};
}

std::string PeerOf(const grpc::ServerContextBase& context) { return AsFlagsHaveIt(context.peer()); }
std::string PeerOf(const grpc::ClientContext& context) { return AsFlagsHaveIt(context.peer()); }

}  // namespace recon
