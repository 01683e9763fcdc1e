#include "common/rpc/control_client.h"

#include <string>
#include <utility>

#include "common/rpc/status_codes.h"
#include "grpc/support/time.h"

namespace recon {
namespace {

constexpr size_t kCompressedFrom = 16 << 10;

}  // namespace

template <typename Request, typename Reply>
absl::StatusOr<Reply> ControlClient::Call(Method<Request, Reply> method, const Request& request,
                                          absl::Duration deadline) {
  for (bool again = false;; again = true) {
    grpc::ClientContext context;
    const std::string shown = introduction_.AddTo(&context);
    // As a span: a clock that is set meanwhile changes nothing.
    context.set_deadline(gpr_time_from_nanos(absl::ToInt64Nanoseconds(deadline), GPR_TIMESPAN));
    // A worker with a large model is a stranger until its shapes are there; they shrink to a tenth.
    if (request.ByteSizeLong() > kCompressedFrom) context.set_compression_algorithm(GRPC_COMPRESS_GZIP);
    Reply reply;
    const grpc::Status status = (stub_.get()->*method)(&context, request, &reply);
    if (status.ok()) return reply;
    if (status.error_code() == grpc::StatusCode::UNIMPLEMENTED) {
      return absl::UnimplementedError(
          "it is not the head of a job: ask the one that was started without --join");
    }
    if (again || !introduction_.FindsAnother(shown, status, context)) return FromGrpc(status);
  }
}

ControlClient::ControlClient(const std::shared_ptr<grpc::Channel>& channel, absl::Duration deadline,
                             Caller caller)
    : stub_(Control::NewStub(channel)), deadline_(deadline), introduction_(std::move(caller)) {}

absl::StatusOr<RegisterReply> ControlClient::Register(const RegisterRequest& request) {
  return Call<RegisterRequest, RegisterReply>(&Control::Stub::Register, request, deadline_);
}

absl::StatusOr<HeartbeatReply> ControlClient::Heartbeat(const HeartbeatRequest& request) {
  return Call<HeartbeatRequest, HeartbeatReply>(&Control::Stub::Heartbeat, request, deadline_);
}

absl::StatusOr<AcquireReply> ControlClient::Acquire(const AcquireRequest& request) {
  return Call<AcquireRequest, AcquireReply>(&Control::Stub::Acquire, request, deadline_);
}

absl::StatusOr<CompleteReply> ControlClient::Complete(const CompleteRequest& request) {
  return Call<CompleteRequest, CompleteReply>(&Control::Stub::Complete, request, deadline_);
}

absl::StatusOr<RejoinReply> ControlClient::Rejoin(const RejoinRequest& request) {
  return Call<RejoinRequest, RejoinReply>(&Control::Stub::Rejoin, request, deadline_);
}

absl::StatusOr<LeaveReply> ControlClient::Leave(const LeaveRequest& request) {
  return Call<LeaveRequest, LeaveReply>(&Control::Stub::Leave, request, deadline_);
}

absl::StatusOr<StatusReply> ControlClient::Status() {
  return Call<StatusRequest, StatusReply>(&Control::Stub::Status, StatusRequest(), deadline_);
}

absl::StatusOr<HistoryReply> ControlClient::History(const HistoryRequest& request) {
  return Call<HistoryRequest, HistoryReply>(&Control::Stub::History, request, deadline_);
}

absl::StatusOr<CompletionsReply> ControlClient::Completions() {
  return Call<CompletionsRequest, CompletionsReply>(&Control::Stub::Completions, CompletionsRequest(),
                                                    deadline_);
}

absl::StatusOr<SnapshotReply> ControlClient::Snapshot() {
  return Call<SnapshotRequest, SnapshotReply>(&Control::Stub::Snapshot, SnapshotRequest(), absl::Minutes(10));
}

absl::StatusOr<SetPolicyReply> ControlClient::SetPolicy(const PolicySettings& policy) {
  SetPolicyRequest request;
  *request.mutable_policy() = policy;
  // It waits for what is under way.
  return Call<SetPolicyRequest, SetPolicyReply>(&Control::Stub::SetPolicy, request, absl::Seconds(30));
}

absl::StatusOr<RollbackReply> ControlClient::Rollback(const RollbackRequest& request) {
  return Call<RollbackRequest, RollbackReply>(&Control::Stub::Rollback, request, absl::Minutes(10));
}

absl::StatusOr<DrainReply> ControlClient::Drain() {
  return Call<DrainRequest, DrainReply>(&Control::Stub::Drain, DrainRequest(), absl::Minutes(10));
}

}  // namespace recon
