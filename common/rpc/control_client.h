#pragma once

#include <memory>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "common/rpc/caller.h"
#include "common/rpc/own_token.h"
#include "common/rpc/worker_calls.h"
#include "grpcpp/channel.h"
#include "proto/control.grpc.pb.h"

namespace recon {

// Blocking calls of the Control service, each with a deadline. Without a token of its own, what is denied is
// asked for again with the head's (Introduction). Errors are the
// server's, with Unavailable or DeadlineExceeded when it cannot be reached. Thread-safe.
class ControlClient : public WorkerCalls {
 public:
  // Of calls that wait for nobody.
  static constexpr absl::Duration kDeadline = absl::Seconds(5);

  // Each call shows `caller`.
  explicit ControlClient(const std::shared_ptr<grpc::Channel>& channel, absl::Duration deadline = kDeadline,
                         Caller caller = {});

  absl::StatusOr<RegisterReply> Register(const RegisterRequest& request) override;
  absl::StatusOr<HeartbeatReply> Heartbeat(const HeartbeatRequest& request) override;
  absl::StatusOr<AcquireReply> Acquire(const AcquireRequest& request) override;
  absl::StatusOr<CompleteReply> Complete(const CompleteRequest& request) override;
  absl::StatusOr<RejoinReply> Rejoin(const RejoinRequest& request) override;
  absl::StatusOr<LeaveReply> Leave(const LeaveRequest& request) override;
  absl::StatusOr<StatusReply> Status();
  absl::StatusOr<HistoryReply> History(const HistoryRequest& request);
  absl::StatusOr<CompletionsReply> Completions();
  // Waits for the snapshot: up to ten minutes.
  absl::StatusOr<SnapshotReply> Snapshot();
  // Waits until the server is about to end: up to ten minutes.
  absl::StatusOr<DrainReply> Drain();
  absl::StatusOr<SetPolicyReply> SetPolicy(const PolicySettings& policy);
  // Waits until it is planned, for which the push log is read: up to ten minutes.
  absl::StatusOr<RollbackReply> Rollback(const RollbackRequest& request);

 private:
  template <typename Request, typename Reply>
  using Method = grpc::Status (Control::Stub::*)(grpc::ClientContext*, const Request&, Reply*);
  template <typename Request, typename Reply>
  absl::StatusOr<Reply> Call(Method<Request, Reply> method, const Request& request, absl::Duration deadline);

  std::unique_ptr<Control::Stub> stub_;
  absl::Duration deadline_;
  Introduction introduction_;
};

}  // namespace recon
