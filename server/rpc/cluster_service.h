#pragma once

#include <memory>
#include <set>

#include "absl/base/thread_annotations.h"
#include "common/base/mutex.h"
#include "proto/cluster.grpc.pb.h"
#include "server/cluster/links.h"
#include "server/rpc/access.h"

namespace recon {

class ServerStream;

// ShardServers over gRPC's callback API: a stream a server, which is its ServerLink.
//
// Threads: thread-safe. Shutdown: Close(), then shut the RPC server down, then destroy.
class ClusterService : public ShardServers::CallbackService {
 public:
  // Both must outlive the service.
  ClusterService(Access* access, ServerReports* reports) : access_(access), reports_(reports) {}

  grpc::ServerBidiReactor<ServerReport, ServerCommand>* Serve(grpc::CallbackServerContext* context) override;

  // Ends all streams, when what they were told is sent. The servers are told why.
  void Close(const absl::Status& why);

 private:
  friend class ServerStream;
  void Forget(ServerStream* stream);

  Access* const access_;
  ServerReports* const reports_;

  Mutex mu_;
  std::set<ServerStream*> streams_ ABSL_GUARDED_BY(mu_);
};

}  // namespace recon
