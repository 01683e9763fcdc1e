#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "common/rpc/connections.h"
#include "common/rpc/credentials.h"
#include "common/rpc/front_door.h"

namespace grpc {
class Server;
class Service;
namespace experimental {
class ExternalConnectionAcceptor;
}
}  // namespace grpc

namespace recon {

// The gRPC server of one process. It has gRPC's health service (grpc.health.v1.Health), which says of the
// whole process, the service "", that it does not serve until SetServing(true).
class RpcServer {
 public:
  using Listening = std::function<absl::Status(const std::string& address)>;
  // Listens on `address` (host:port, port 0 takes a free one), which `flag` has said. The services must
  // outlive the server, as must `connections`, which the services tell what they have understood; without
  // them what strangers send has no bound. `listening` is told address() before the first connection is
  // taken; those that come meanwhile wait, and its error is the start's. InvalidArgument for a malformed
  // address or bad TLS flags, Unavailable if the port is taken.
  static absl::StatusOr<std::unique_ptr<RpcServer>> Start(const std::string& flag, const std::string& address,
                                                          const TlsFlags& tls,
                                                          const std::vector<grpc::Service*>& services,
                                                          Connections* connections = nullptr,
                                                          RevokedClients revoked = RevokedClients::kRefused,
                                                          const Listening& listening = nullptr);
  ~RpcServer();

  // host:port with the real port.
  const std::string& address() const { return address_; }

  // What the health service says, and tells those who watch it. Before Shutdown(), on any thread.
  void SetServing(bool serving);

  // Takes no new calls, waits for those that run, cancels what is left at the deadline.
  void Shutdown(absl::Duration timeout);

 private:
  RpcServer() = default;

  Connections own_connections_;
  std::unique_ptr<grpc::experimental::ExternalConnectionAcceptor> acceptor_;
  std::unique_ptr<grpc::Server> server_;
  std::unique_ptr<FrontDoor> door_;  // After the server: it hands over to it.
  std::string address_;
};

}  // namespace recon
