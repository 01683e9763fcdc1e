#include "common/rpc/control_client.h"

#include "common/rpc/status_codes.h"
#include "grpc/support/time.h"

namespace recon {
namespace {

template <typename Request, typename Reply>
using Method = grpc::Status (Control::Stub::*)(grpc::ClientContext*, const Request&, Reply*);

template <typename Request, typename Reply>
absl::StatusOr<Reply> Call(Control::Stub* stub, Method<Request, Reply> method, const Request& request,
                           absl::Duration deadline) {
  grpc::ClientContext context;
  // As a span: a clock that is set meanwhile changes nothing.
  context.set_deadline(gpr_time_from_nanos(absl::ToInt64Nanoseconds(deadline), GPR_TIMESPAN));
  Reply reply;
  const grpc::Status status = (stub->*method)(&context, request, &reply);
  if (status.error_code() == grpc::StatusCode::UNIMPLEMENTED) {
    return absl::UnimplementedError(
        "it is not the head of a job: ask the one that was started without --join");
  }
  if (!status.ok()) return FromGrpc(status);
  return reply;
}

}  // namespace

ControlClient::ControlClient(const std::shared_ptr<grpc::Channel>& channel, absl::Duration deadline)
    : stub_(Control::NewStub(channel)), deadline_(deadline) {}

absl::StatusOr<RegisterReply> ControlClient::Register(const RegisterRequest& request) {
  return Call<RegisterRequest, RegisterReply>(stub_.get(), &Control::Stub::Register, request, deadline_);
}

absl::StatusOr<HeartbeatReply> ControlClient::Heartbeat(const HeartbeatRequest& request) {
  return Call<HeartbeatRequest, HeartbeatReply>(stub_.get(), &Control::Stub::Heartbeat, request, deadline_);
}

absl::StatusOr<AcquireReply> ControlClient::Acquire(const AcquireRequest& request) {
  return Call<AcquireRequest, AcquireReply>(stub_.get(), &Control::Stub::Acquire, request, deadline_);
}

absl::StatusOr<CompleteReply> ControlClient::Complete(const CompleteRequest& request) {
  return Call<CompleteRequest, CompleteReply>(stub_.get(), &Control::Stub::Complete, request, deadline_);
}

absl::StatusOr<RejoinReply> ControlClient::Rejoin(const RejoinRequest& request) {
  return Call<RejoinRequest, RejoinReply>(stub_.get(), &Control::Stub::Rejoin, request, deadline_);
}

absl::StatusOr<LeaveReply> ControlClient::Leave(const LeaveRequest& request) {
  return Call<LeaveRequest, LeaveReply>(stub_.get(), &Control::Stub::Leave, request, deadline_);
}

absl::StatusOr<StatusReply> ControlClient::Status() {
  return Call<StatusRequest, StatusReply>(stub_.get(), &Control::Stub::Status, StatusRequest(), deadline_);
}

absl::StatusOr<HistoryReply> ControlClient::History(const HistoryRequest& request) {
  return Call<HistoryRequest, HistoryReply>(stub_.get(), &Control::Stub::History, request, deadline_);
}

absl::StatusOr<CompletionsReply> ControlClient::Completions() {
  return Call<CompletionsRequest, CompletionsReply>(stub_.get(), &Control::Stub::Completions,
                                                    CompletionsRequest(), deadline_);
}

absl::StatusOr<SnapshotReply> ControlClient::Snapshot() {
  return Call<SnapshotRequest, SnapshotReply>(stub_.get(), &Control::Stub::Snapshot, SnapshotRequest(),
                                              absl::Minutes(10));
}

absl::StatusOr<SetPolicyReply> ControlClient::SetPolicy(const PolicySettings& policy) {
  SetPolicyRequest request;
  *request.mutable_policy() = policy;
  // It waits for what is under way.
  return Call<SetPolicyRequest, SetPolicyReply>(stub_.get(), &Control::Stub::SetPolicy, request,
                                                absl::Seconds(30));
}

absl::StatusOr<RollbackReply> ControlClient::Rollback(const RollbackRequest& request) {
  return Call<RollbackRequest, RollbackReply>(stub_.get(), &Control::Stub::Rollback, request,
                                              absl::Minutes(10));
}

absl::StatusOr<DrainReply> ControlClient::Drain() {
  return Call<DrainRequest, DrainReply>(stub_.get(), &Control::Stub::Drain, DrainRequest(),
                                        absl::Minutes(10));
}

}  // namespace recon
