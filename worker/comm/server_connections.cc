#include "worker/comm/server_connections.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/check.h"
#include "common/base/host_port.h"
#include "common/base/log.h"
#include "common/base/status_macros.h"
#include "common/rpc/grpc_transport.h"
#include "common/rpc/wire_bytes.h"
#include "common/shm/shm_transport.h"
#include "common/tensor/shard_assignment.h"
#include "common/ucx/ucx_transport.h"

namespace recon {

namespace {

absl::StatusOr<std::string> UcxAddressOf(const ServerAddress& server) {
  const std::string& offered = server.ucx_address();
  if (offered.empty()) {
    return absl::FailedPreconditionError(absl::StrCat("--transport ucx: the server at ", server.address(),
                                                      " does not offer it (--ucx-listen)"));
  }
  if (offered.front() != ':') return offered;
  return absl::StrCat(server.address().substr(0, server.address().rfind(':')), offered);
}

}  // namespace

absl::StatusOr<std::shared_ptr<Transport>> ServerConnections::ConnectToServer(
    const ServerAddress& server) const {
  if (options_.ucx) {
    RECON_ASSIGN_OR_RETURN(const std::string address, UcxAddressOf(server));
    RECON_ASSIGN_OR_RETURN(std::unique_ptr<Transport> ucx, ConnectOverUcx(address, options_.caller.secret));
    return std::shared_ptr<Transport>(std::move(ucx));
  }
  RECON_ASSIGN_OR_RETURN(
      std::unique_ptr<Transport> transport,
      ConnectForFrames(server.address(), options_.tls, options_.connections, window_, options_.caller));
  if (options_.shared_memory && !server.shared_memory().empty()) {
    transport =
        std::make_unique<ShmTransport>(server.shared_memory(), std::move(transport), options_.caller.secret);
  }
  return std::shared_ptr<Transport>(std::move(transport));
}

absl::Status ServerConnections::Adopt(const RegisterReply& reply) {
  std::vector<ServerAddress> servers(1);
  servers[0].set_address(options_.head);
  servers[0].set_shared_memory(reply.shared_memory());
  servers[0].set_ucx_address(reply.ucx_address());
  servers.insert(servers.end(), reply.servers().begin(), reply.servers().end());
  RECON_RETURN_IF_ERROR(ConnectTo(servers));
  std::shared_ptr<SendWindow> window;
  {
    MutexLock lock(&mu_);
    window = window_;
  }
  window->ShareWith(reply.workers());
  window->SetOneMachine(OnOneMachine(ports()));  // The control connection stands, at least.
  return absl::OkStatus();
}

void ServerConnections::ShareWith(uint32_t workers) {
  std::shared_ptr<SendWindow> window;
  {
    MutexLock lock(&mu_);
    window = window_;
  }
  if (window != nullptr) window->ShareWith(workers);
}

absl::Status ServerConnections::ConnectTo(const std::vector<ServerAddress>& servers) {
  std::vector<std::shared_ptr<Transport>> replaced;  // Destroyed without the lock.
  MutexLock lock(&mu_);
  if (!servers_.empty() && servers.size() != servers_.size()) {
    return absl::FailedPreconditionError(absl::StrCat("the job has ", servers.size(), " servers now, it had ",
                                                      servers_.size(), ": start the worker again"));
  }
  if (servers_.empty()) {
    window_ = std::make_shared<SendWindow>(servers.size(), static_cast<size_t>(options_.connections));
    client_.emplace(AssignShards(*layout_, static_cast<uint32_t>(servers.size())));
    transports_.resize(servers.size());
    servers_.resize(servers.size());
  }
  RECON_CHECK_EQ(transports_.size(), servers.size());
  RECON_CHECK(client_.has_value());
  for (size_t i = 0; i < servers.size(); ++i) {
    const bool same = transports_[i] != nullptr && servers[i].address() == servers_[i].address() &&
                      servers[i].shared_memory() == servers_[i].shared_memory() &&
                      servers[i].ucx_address() == servers_[i].ucx_address();
    if (same) continue;
    RECON_ASSIGN_OR_RETURN(std::shared_ptr<Transport> transport, ConnectToServer(servers[i]));
    if (transports_[i] != nullptr) LogInfo("server {} is at {} now", i, servers[i].address());
    replaced.push_back(std::exchange(transports_[i], std::move(transport)));
    servers_[i] = servers[i];
  }
  std::vector<std::string> addresses;
  for (const ServerAddress& server : servers_) addresses.push_back(server.address());
  client_->Connect(transports_, addresses);
  return absl::OkStatus();
}

void ServerConnections::Disconnect() {
  ParamClient* known = client();
  if (known != nullptr) known->Disconnect();
}

ParamClient* ServerConnections::client() {
  MutexLock lock(&mu_);
  return client_ ? &*client_ : nullptr;
}

bool ServerConnections::SharesMemory() const {
  std::vector<std::shared_ptr<Transport>> transports;
  {
    MutexLock lock(&mu_);
    transports = transports_;
  }
  return !transports.empty() && std::all_of(transports.begin(), transports.end(), [](const auto& transport) {
    return transport != nullptr && transport->SharesMemory();
  });
}

std::set<uint16_t> ServerConnections::ports() const {
  MutexLock lock(&mu_);
  std::set<uint16_t> ports;
  for (const ServerAddress& server : servers_) {
    if (const auto port = PortOf(server.address()); port.ok()) ports.insert(*port);
  }
  return ports;
}

}  // namespace recon
