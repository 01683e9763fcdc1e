#pragma once

#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "common/rpc/caller.h"
#include "common/rpc/client_channel.h"
#include "proto/collective.pb.h"

namespace recon {

// The sets of processes that a head has, as an observer may ask; a call takes 2 s at most. Errors are gRPC's,
// and of the second ConnectTo()'s and CallerFor()'s, too; without a token it finds the head's own
// (own_token.h). They block.
absl::StatusOr<SetsReply> AskForSets(const std::shared_ptr<grpc::Channel>& channel, const Caller& caller);
absl::StatusOr<SetsReply> AskForSets(const std::string& server, const TlsFlags& tls);

}  // namespace recon
