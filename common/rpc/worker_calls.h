#pragma once

#include "absl/status/statusor.h"
#include "proto/control.pb.h"

namespace recon {

// What a worker asks the head for, of all calls of the Control service. A test answers them in memory.
//
// Threads: thread-safe. Each call blocks until it is answered or its deadline has passed. Errors are the
// head's, with Unavailable or DeadlineExceeded when it cannot be reached.
class WorkerCalls {
 public:
  virtual ~WorkerCalls() = default;

  virtual absl::StatusOr<RegisterReply> Register(const RegisterRequest& request) = 0;
  virtual absl::StatusOr<HeartbeatReply> Heartbeat(const HeartbeatRequest& request) = 0;
  virtual absl::StatusOr<AcquireReply> Acquire(const AcquireRequest& request) = 0;
  virtual absl::StatusOr<CompleteReply> Complete(const CompleteRequest& request) = 0;
  virtual absl::StatusOr<RejoinReply> Rejoin(const RejoinRequest& request) = 0;
  virtual absl::StatusOr<LeaveReply> Leave(const LeaveRequest& request) = 0;
};

}  // namespace recon
