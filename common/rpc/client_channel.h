#pragma once

#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "common/rpc/credentials.h"
#include "grpcpp/channel.h"

namespace recon {

// A channel to a recon-server with the settings that a job needs: reconnects within half a second,
// notices a stopped peer by keepalive, bounded messages, no hidden retries (pushes are retried by
// their sender, which knows they are idempotent). Thread-safe.
//
// `address` is host:port; channels of different `connection` have connections of their own. InvalidArgument
// for a malformed address or bad TLS flags.
absl::StatusOr<std::shared_ptr<grpc::Channel>> ConnectTo(const std::string& address, const TlsFlags& tls,
                                                         int connection = 0);

}  // namespace recon
