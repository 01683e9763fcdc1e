#pragma once

#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "common/rpc/client_channel.h"
#include "common/rpc/own_token.h"
#include "proto/collective.pb.h"

namespace recon {

// The sets of processes that a head has, as an observer may ask; a call takes 2 s at most, and is made again
// where a token is found. Errors are gRPC's, and of the second ConnectTo()'s and CallerFor()'s, too. They
// block.
absl::StatusOr<SetsReply> AskForSets(const std::shared_ptr<grpc::Channel>& channel,
                                     Introduction* introduction);
absl::StatusOr<SetsReply> AskForSets(const std::string& server, const TlsFlags& tls);

}  // namespace recon
