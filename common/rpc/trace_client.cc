#include "common/rpc/trace_client.h"

#include <string>
#include <utility>

#include "common/base/clock.h"
#include "common/base/limits.h"
#include "common/rpc/status_codes.h"
#include "grpc/support/time.h"

namespace recon {
namespace {

// What is measured is of no use later; what is delivered is, as long as the head waits for it.
constexpr absl::Duration kReadingDeadline = absl::Seconds(1);
constexpr absl::Duration kDeliveryDeadline = limits::kTracePatience;
// Until all members are told, and whatever else a trace takes besides its own time.
constexpr absl::Duration kBesides = absl::Seconds(30);

void SetDeadline(absl::Duration deadline, grpc::ClientContext* context) {
  // As a span: a clock that is set meanwhile changes nothing.
  context->set_deadline(gpr_time_from_nanos(absl::ToInt64Nanoseconds(deadline), GPR_TIMESPAN));
}

absl::Status StatusOf(const grpc::Status& status) {
  if (status.error_code() != grpc::StatusCode::UNIMPLEMENTED) return FromGrpc(status);
  return absl::UnimplementedError(
      "it is not the head of a job, or one that is too old for traces: ask the one that was started without "
      "--join");
}

}  // namespace

TraceClient::TraceClient(const std::shared_ptr<grpc::Channel>& channel, Caller caller)
    : stub_(Trace::NewStub(channel)), introduction_(std::move(caller)) {}

absl::Status TraceClient::Record(absl::Duration length, const std::function<void(TraceUpdate)>& take) {
  RecordRequest request;
  request.set_milliseconds(static_cast<uint32_t>(absl::ToInt64Milliseconds(length)));
  for (bool again = false;; again = true) {
    grpc::ClientContext context;
    const std::string shown = introduction_.AddTo(&context);
    SetDeadline(length + limits::kTracePatience + kBesides, &context);
    const auto stream = stub_->Record(&context, request);
    TraceUpdate update;
    while (stream->Read(&update)) take(std::move(update));
    const grpc::Status status = stream->Finish();
    if (again || !introduction_.FindsAnother(shown, status, context)) return StatusOf(status);
  }
}

absl::StatusOr<ClockSample> TraceClient::ReadClock(uint64_t trace) {
  ClockRequest request;
  request.set_trace(trace);
  for (bool again = false;; again = true) {
    grpc::ClientContext context;
    const std::string shown = introduction_.AddTo(&context);
    SetDeadline(kReadingDeadline, &context);
    ClockReply reply;
    ClockSample sample;
    sample.set_asked_ns(MonotonicNanos());
    const grpc::Status status = stub_->Clock(&context, request, &reply);
    sample.set_answered_ns(MonotonicNanos());
    if (status.ok()) {
      sample.set_received_ns(reply.received_ns());
      sample.set_sent_ns(reply.sent_ns());
      return sample;
    }
    if (again || !introduction_.FindsAnother(shown, status, context)) return StatusOf(status);
  }
}

absl::StatusOr<TraceReceipt> TraceClient::Deliver(const TraceDelivery& delivery) {
  for (bool again = false;; again = true) {
    grpc::ClientContext context;
    const std::string shown = introduction_.AddTo(&context);
    SetDeadline(kDeliveryDeadline, &context);
    TraceReceipt receipt;
    const grpc::Status status = stub_->Deliver(&context, delivery, &receipt);
    if (status.ok()) return receipt;
    if (again || !introduction_.FindsAnother(shown, status, context)) return StatusOf(status);
  }
}

}  // namespace recon
