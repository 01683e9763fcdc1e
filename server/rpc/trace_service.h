#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/time/time.h"
#include "common/base/lane.h"
#include "common/base/mutex.h"
#include "proto/control.pb.h"
#include "proto/trace.grpc.pb.h"
#include "server/cluster/cluster.h"
#include "server/control/lane_coordinator.h"
#include "server/rpc/access.h"
#include "server/trace/trace_collector.h"

namespace recon {

class TraceStream;

// The head's Trace service: has the job's processes record, itself among them, and hands what they deliver to
// the client that asked for it.
//
// Threads: thread-safe; a lane of its own watches over the trace. Shutdown: Close(), then shut the RPC server
// down, then destroy. The pointers must outlive it; `cluster` is null without other servers.
class TraceService : public Trace::CallbackService {
 public:
  using Reactor = grpc::ServerUnaryReactor;
  using Context = grpc::CallbackServerContext;

  TraceService(Access* access, LaneCoordinator* coordinator, Cluster* cluster);
  ~TraceService() override;

  // Where clients reach this process, as traces show it.
  void SetAddress(const std::string& address);
  // What a worker is told with each heartbeat.
  void Tell(HeartbeatReply* reply) const;
  // Ends the trace that is recorded, if one is.
  void Close();

  grpc::ServerWriteReactor<TraceUpdate>* Record(Context* context, const RecordRequest* request) override;
  Reactor* Clock(Context* context, const ClockRequest* request, ClockReply* reply) override;
  Reactor* Deliver(Context* context, const TraceDelivery* delivery, TraceReceipt* receipt) override;

 private:
  // Lane only.
  void Watch(const std::shared_ptr<TraceStream>& stream, absl::Duration length);
  void RecordHere(const std::shared_ptr<TraceStream>& stream, int64_t end_ns);
  void TellServers();
  // This process.
  TraceMember Head();
  // Who is in the job, and how long it takes until all of them are told.
  struct Job {
    std::vector<TraceMember> members;
    absl::Duration told_within;
  };
  Job LookAtJob();

  Access* const access_;
  LaneCoordinator* const coordinator_;
  Cluster* const cluster_;
  TraceCollector collector_;

  Mutex mu_;
  std::string address_ ABSL_GUARDED_BY(mu_);
  bool closed_ ABSL_GUARDED_BY(mu_) = false;
  std::weak_ptr<TraceStream> stream_ ABSL_GUARDED_BY(mu_);  // The last one.

  Lane lane_;
};

}  // namespace recon
