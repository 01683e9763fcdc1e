#include "common/rpc/rpc_server.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/host_port.h"
#include "common/base/limits.h"
#include "common/base/log.h"
#include "common/base/machine_limits.h"
#include "common/base/status_macros.h"
#include "grpcpp/health_check_service_interface.h"
#include "grpcpp/server.h"
#include "grpcpp/server_builder.h"

namespace recon {

absl::StatusOr<std::unique_ptr<RpcServer>> RpcServer::Start(const std::string& flag,
                                                            const std::string& address, const TlsFlags& tls,
                                                            const std::vector<grpc::Service*>& services,
                                                            Connections* connections, RevokedClients revoked,
                                                            const Listening& listening) {
  RECON_RETURN_IF_ERROR(CheckAddress(flag, address));
  RECON_ASSIGN_OR_RETURN(const auto credentials, ServerCredentialsFor(address, tls, revoked));
  grpc::EnableDefaultHealthCheckService(true);
  grpc::ServerBuilder builder;
  std::unique_ptr<RpcServer> started(new RpcServer());
  ConnectionLimits limits = LimitsFor(ReadMachineLimits().descriptors);
  if (connections == nullptr) limits = WithoutLimitsOfStrangers(limits);
  RECON_ASSIGN_OR_RETURN(started->door_, FrontDoor::Listen(flag, address, limits));
  using Type = grpc::ServerBuilder::experimental_type::ExternalConnectionType;
  started->acceptor_ = builder.experimental().AddExternalConnectionAcceptor(Type::FROM_FD, credentials);
  for (grpc::Service* service : services) builder.RegisterService(service);
  builder.SetMaxReceiveMessageSize(limits::kControlMessageBytesMax);
  builder.SetMaxSendMessageSize(limits::kControlMessageBytesMax);
  const int interval_ms = static_cast<int>(limits::kKeepaliveInterval / absl::Milliseconds(1));
  const int timeout_ms = static_cast<int>(limits::kKeepaliveTimeout / absl::Milliseconds(1));
  builder.AddChannelArgument(GRPC_ARG_KEEPALIVE_TIME_MS, interval_ms);
  builder.AddChannelArgument(GRPC_ARG_KEEPALIVE_TIMEOUT_MS, timeout_ms);
  builder.AddChannelArgument(GRPC_ARG_KEEPALIVE_PERMIT_WITHOUT_CALLS, 1);
  // Who asks more often than that is sent away.
  builder.AddChannelArgument(GRPC_ARG_HTTP2_MIN_RECV_PING_INTERVAL_WITHOUT_DATA_MS, interval_ms / 2);
  builder.AddChannelArgument(GRPC_ARG_HTTP2_MAX_PINGS_WITHOUT_DATA, 0);
  builder.AddChannelArgument(GRPC_ARG_TCP_MAX_READ_CHUNK_SIZE, limits::kReadBlockBytesMax);
  started->server_ = builder.BuildAndStart();
  if (started->server_ == nullptr) {
    return absl::UnavailableError(absl::StrCat(flag, " ", address, ": gRPC's server does not start"));
  }
  if (const std::string here = LoopbackBehindName(address); !here.empty()) {
    LogWarn("{} {}: that name is {} on this machine: others do not reach it", flag, address, here);
  }
  started->address_ = absl::StrCat(address.substr(0, address.rfind(':')), ":", started->door_->port());
  started->SetServing(false);
  if (listening != nullptr) RECON_RETURN_IF_ERROR(listening(started->address_));
  started->door_->Start(
      [acceptor = started->acceptor_.get()](int listener, int fd) {
        grpc::experimental::ExternalConnectionAcceptor::NewConnectionParameters connection;
        connection.listener_fd = listener;
        connection.fd = fd;
        acceptor->HandleNewConnection(&connection);
      },
      connections == nullptr ? &started->own_connections_ : connections);
  return started;
}

RpcServer::~RpcServer() { Shutdown(absl::ZeroDuration()); }

void RpcServer::SetServing(bool serving) {
  // gRPC's own, which every server has that is built after it was enabled.
  if (grpc::HealthCheckServiceInterface* health = server_->GetHealthCheckService(); health != nullptr) {
    health->SetServingStatus(serving);
  }
}

void RpcServer::Shutdown(absl::Duration timeout) {
  door_ = nullptr;
  if (server_ == nullptr) return;
  server_->Shutdown(gpr_time_from_nanos(absl::ToInt64Nanoseconds(timeout), GPR_TIMESPAN));
  server_->Wait();
  server_ = nullptr;
}

}  // namespace recon
