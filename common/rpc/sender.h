#pragma once

#include <string>

#include "absl/status/statusor.h"
#include "common/base/ids.h"
#include "grpcpp/client_context.h"
#include "grpcpp/support/server_callback.h"

namespace recon {

// Which process of a worker makes a call, by the secret that it shows (Caller); 0 if it shows none.
// InvalidArgument for what is no secret.
absl::StatusOr<Incarnation> SenderOf(const grpc::CallbackServerContext& context);

// From where it comes, in the form that flags have: "10.0.0.2:4711", "[::1]:4711".
std::string PeerOf(const grpc::ServerContextBase& context);
// The token that the caller shows, cut to 1,024 bytes; empty if it shows none.
std::string TokenOf(const grpc::CallbackServerContext& context);
// Where it went.
std::string PeerOf(const grpc::ClientContext& context);

}  // namespace recon
