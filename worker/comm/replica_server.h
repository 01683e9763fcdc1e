#pragma once

#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "common/base/mutex.h"
#include "common/metrics/metrics.h"
#include "common/rpc/credentials.h"
#include "common/rpc/param_service.h"
#include "common/rpc/rpc_server.h"
#include "common/tensor/param_layout.h"
#include "worker/comm/replica.h"

namespace recon {

// Hands a worker's parameters to workers that join: the Param service, of which it knows pulls only. Whoever
// asks checks them with the server.
//
// Threads: gRPC's. Shutdown: just destroy; what is under way ends with Unavailable.
class ReplicaServer {
 public:
  // Listens on `address` (port 0 takes a free one). Nobody gets anything before SetToken(). The pointers must
  // outlive the server. Errors are RpcServer::Start()'s.
  static absl::StatusOr<std::unique_ptr<ReplicaServer>> Start(const std::string& address, const TlsFlags& tls,
                                                              const ParamLayout* layout,
                                                              const Replica* replica, Metrics* metrics);
  ~ReplicaServer();

  // host:port with the real port.
  const std::string& address() const { return rpc_->address(); }

  // Who shows it is a worker of the job; the one before is good no more. Any thread.
  void SetToken(const std::string& token);

 private:
  ReplicaServer(const ParamLayout* layout, const Replica* replica, Metrics* metrics);

  absl::StatusOr<ByteChain> Answer(const ByteChain& request) const;
  absl::Status Admit(const std::string& token) const;

  const ParamLayout* const layout_;
  const Replica* const replica_;
  prometheus::Counter& bytes_;
  mutable Mutex mu_;
  std::string token_ ABSL_GUARDED_BY(mu_);
  Connections connections_;
  ParamService service_;
  std::unique_ptr<RpcServer> rpc_;
};

}  // namespace recon
