#include "common/rpc/client_channel.h"

#include "common/base/host_port.h"
#include "common/base/limits.h"
#include "common/base/status_macros.h"
#include "grpcpp/create_channel.h"
#include "grpcpp/support/channel_arguments.h"

namespace recon {

absl::StatusOr<std::shared_ptr<grpc::Channel>> ConnectTo(const std::string& address, const TlsFlags& tls,
                                                         int connection) {
  RECON_RETURN_IF_ERROR(CheckAddress("address", address));
  RECON_ASSIGN_OR_RETURN(const auto credentials, ChannelCredentialsFor(address, tls));
  grpc::ChannelArguments args;
  args.SetInt("recon.connection", connection);  // Channels of equal arguments share one.
  args.SetInt(GRPC_ARG_ENABLE_RETRIES, 0);
  // http_proxy and its like are for what leaves the cluster.
  args.SetInt(GRPC_ARG_ENABLE_HTTP_PROXY, 0);
  // A head that was started on another machine is found there: its name is looked up with each try.
  args.SetInt(GRPC_ARG_DNS_MIN_TIME_BETWEEN_RESOLUTIONS_MS, 1'000);
  args.SetInt(GRPC_ARG_INITIAL_RECONNECT_BACKOFF_MS, 100);
  // A connection attempt, too, has so long: what TLS needs over a link of half a second and back.
  args.SetInt(GRPC_ARG_MIN_RECONNECT_BACKOFF_MS, 2'000);
  args.SetInt(GRPC_ARG_MAX_RECONNECT_BACKOFF_MS, 500);
  const int interval_ms = static_cast<int>(limits::kKeepaliveInterval / absl::Milliseconds(1));
  const int timeout_ms = static_cast<int>(limits::kKeepaliveTimeout / absl::Milliseconds(1));
  args.SetInt(GRPC_ARG_KEEPALIVE_TIME_MS, interval_ms);
  args.SetInt(GRPC_ARG_KEEPALIVE_TIMEOUT_MS, timeout_ms);
  args.SetInt(GRPC_ARG_KEEPALIVE_PERMIT_WITHOUT_CALLS, 1);
  args.SetInt(GRPC_ARG_HTTP2_MAX_PINGS_WITHOUT_DATA, 0);
  args.SetInt(GRPC_ARG_TCP_MAX_READ_CHUNK_SIZE, limits::kReadBlockBytesMax);
  args.SetInt(GRPC_ARG_TCP_MIN_READ_CHUNK_SIZE, limits::kReadBlockBytesMin);
  args.SetMaxReceiveMessageSize(limits::kControlMessageBytesMax);
  args.SetMaxSendMessageSize(limits::kControlMessageBytesMax);
  return grpc::CreateCustomChannel(address, credentials, args);
}

}  // namespace recon
