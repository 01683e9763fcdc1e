#pragma once

#include <functional>
#include <memory>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "common/rpc/own_token.h"
#include "grpcpp/channel.h"
#include "proto/trace.grpc.pb.h"

namespace recon {

// Blocking calls of the head's Trace service, each with a deadline, and each made again where a token is
// found (Introduction). Thread-safe. Errors are the head's, with Unavailable or DeadlineExceeded when it
// cannot be reached.
class TraceClient {
 public:
  // Each call shows `caller`.
  explicit TraceClient(const std::shared_ptr<grpc::Channel>& channel, Caller caller = {});

  // Has the job recorded for `length`, and gives `take` what comes, on this thread. Returns when the trace is
  // over.
  absl::Status Record(absl::Duration length, const std::function<void(TraceUpdate)>& take);
  absl::StatusOr<ClockSample> ReadClock(uint64_t trace);
  absl::StatusOr<TraceReceipt> Deliver(const TraceDelivery& delivery);

 private:
  std::unique_ptr<Trace::Stub> stub_;
  Introduction introduction_;
};

}  // namespace recon
