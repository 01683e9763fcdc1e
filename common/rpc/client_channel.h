#pragma once

#include <cstdint>
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

// Whether `address` reads host:port with a port from 0 to 65535; InvalidArgument, naming `flag`.
absl::Status CheckAddress(const std::string& flag, const std::string& address);

// The port of host:port; InvalidArgument if there is none.
absl::StatusOr<uint16_t> PortOf(const std::string& address);

}  // namespace recon
