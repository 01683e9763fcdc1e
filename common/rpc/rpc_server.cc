#include "common/rpc/rpc_server.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/host_port.h"
#include "common/base/limits.h"
#include "common/base/log.h"
#include "common/base/status_macros.h"
#include "grpcpp/health_check_service_interface.h"
#include "grpcpp/server.h"
#include "grpcpp/server_builder.h"

namespace recon {

absl::StatusOr<std::unique_ptr<RpcServer>> RpcServer::Start(const std::string& flag,
                                                            const std::string& address, const TlsFlags& tls,
                                                            const std::vector<grpc::Service*>& services) {
  RECON_RETURN_IF_ERROR(CheckAddress(flag, address));
  RECON_ASSIGN_OR_RETURN(const auto credentials, ServerCredentialsFor(address, tls));
  grpc::EnableDefaultHealthCheckService(true);
  grpc::ServerBuilder builder;
  int port = 0;
  builder.AddListeningPort(address, credentials, &port);
  for (grpc::Service* service : services) builder.RegisterService(service);
  builder.SetMaxReceiveMessageSize(limits::kControlMessageBytesMax);
  builder.SetMaxSendMessageSize(limits::kControlMessageBytesMax);
  // Two servers on one port would share its connections silently.
  builder.AddChannelArgument(GRPC_ARG_ALLOW_REUSEPORT, 0);
  const int interval_ms = static_cast<int>(limits::kKeepaliveInterval / absl::Milliseconds(1));
  const int timeout_ms = static_cast<int>(limits::kKeepaliveTimeout / absl::Milliseconds(1));
  builder.AddChannelArgument(GRPC_ARG_KEEPALIVE_TIME_MS, interval_ms);
  builder.AddChannelArgument(GRPC_ARG_KEEPALIVE_TIMEOUT_MS, timeout_ms);
  builder.AddChannelArgument(GRPC_ARG_KEEPALIVE_PERMIT_WITHOUT_CALLS, 1);
  // Who asks more often than that is sent away.
  builder.AddChannelArgument(GRPC_ARG_HTTP2_MIN_RECV_PING_INTERVAL_WITHOUT_DATA_MS, interval_ms / 2);
  builder.AddChannelArgument(GRPC_ARG_HTTP2_MAX_PINGS_WITHOUT_DATA, 0);
  builder.AddChannelArgument(GRPC_ARG_TCP_MAX_READ_CHUNK_SIZE, limits::kReadBlockBytesMax);
  std::unique_ptr<grpc::Server> server = builder.BuildAndStart();
  if (server == nullptr || port == 0) {
    return absl::UnavailableError(absl::StrCat(
        flag, " ", address, ": cannot listen: the port is taken or the address is not of this host"));
  }
  if (const std::string here = LoopbackBehindName(address); !here.empty()) {
    LogWarn("{} {}: that name is {} on this machine: others do not reach it", flag, address, here);
  }
  const std::string bound = absl::StrCat(address.substr(0, address.rfind(':')), ":", port);
  std::unique_ptr<RpcServer> started(new RpcServer(std::move(server), bound));
  started->SetServing(false);
  return started;
}

RpcServer::RpcServer(std::unique_ptr<grpc::Server> server, std::string address)
    : server_(std::move(server)), address_(std::move(address)) {}

RpcServer::~RpcServer() { Shutdown(absl::ZeroDuration()); }

void RpcServer::SetServing(bool serving) {
  // gRPC's own, which every server has that is built after it was enabled.
  if (grpc::HealthCheckServiceInterface* health = server_->GetHealthCheckService(); health != nullptr) {
    health->SetServingStatus(serving);
  }
}

void RpcServer::Shutdown(absl::Duration timeout) {
  if (server_ == nullptr) return;
  server_->Shutdown(gpr_time_from_nanos(absl::ToInt64Nanoseconds(timeout), GPR_TIMESPAN));
  server_->Wait();
  server_ = nullptr;
}

}  // namespace recon
