#include "server/rpc/trace_service.h"

#include <algorithm>
#include <deque>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/check.h"
#include "common/base/clock.h"
#include "common/base/limits.h"
#include "common/base/log.h"
#include "common/rpc/open_call.h"
#include "common/rpc/sender.h"
#include "common/rpc/status_codes.h"
#include "common/rpc/trace_reporter.h"
#include "common/trace/recorder.h"
#include "common/trace/span_pieces.h"

namespace recon {
namespace {

// Between two looks at what this process has recorded, and at who has delivered all.
constexpr absl::Duration kInterval = absl::Milliseconds(100);
constexpr absl::Duration kPoll = absl::Milliseconds(20);
// The other servers are told again so often: one may have come since.
constexpr int kIntervalsBetweenOrders = 5;
// What a heartbeat may take on its way, besides the time to the next.
constexpr absl::Duration kHeartbeatDelay = absl::Milliseconds(200);

}  // namespace

// What a client is sent. Reactions on gRPC's threads. Lifetime: gRPC and the service keep it.
class TraceStream final : public grpc::ServerWriteReactor<TraceUpdate>,
                          public std::enable_shared_from_this<TraceStream> {
 public:
  explicit TraceStream(std::shared_ptr<Connection> connection) : call_(std::move(connection)) {}

  void Start() { self_ = shared_from_this(); }

  bool Send(const TraceUpdate& update) {
    MutexLock lock(&mu_);
    if (closing_) return true;
    const size_t bytes = update.ByteSizeLong();
    if (update.has_delivery() && bytes_ + bytes > limits::kTraceQueueBytesMax) return false;
    bytes_ += bytes;
    outgoing_.push_back({update, bytes});
    if (outgoing_.size() == 1) StartWrite(&outgoing_.front().update);
    return true;
  }

  // When what was sent is written.
  void Close(const absl::Status& why) {
    MutexLock lock(&mu_);
    if (closing_) return;
    closing_ = why;
    FinishIfIdle();
  }

  // Sleeps for so long, or until the stream is closed; whether it is.
  bool WaitForEnd(absl::Duration duration) {
    MutexLock lock(&mu_);
    return mu_.AwaitFor(duration,
                        [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) { return closing_.has_value(); });
  }

  void OnWriteDone(bool ok) override {
    MutexLock lock(&mu_);
    RECON_CHECK(!outgoing_.empty());
    RECON_CHECK_GE(bytes_, outgoing_.front().bytes);
    bytes_ -= outgoing_.front().bytes;
    outgoing_.pop_front();
    if (!ok) {
      outgoing_.clear();
      if (!closing_) closing_ = absl::UnavailableError("it cannot be written to");
    } else if (!outgoing_.empty()) {
      StartWrite(&outgoing_.front().update);
    }
    FinishIfIdle();
  }

  void OnCancel() override { Close(absl::CancelledError("it has gone")); }
  void OnDone() override { self_.reset(); }

 private:
  struct Outgoing {
    TraceUpdate update;
    size_t bytes;
  };

  void FinishIfIdle() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    if (finished_ || !closing_ || !outgoing_.empty()) return;
    finished_ = true;
    Finish(ToGrpc(*closing_));
  }

  const OpenCall call_;
  std::shared_ptr<TraceStream> self_;

  Mutex mu_;
  std::deque<Outgoing> outgoing_ ABSL_GUARDED_BY(mu_);  // The first is being written.
  size_t bytes_ ABSL_GUARDED_BY(mu_) = 0;
  std::optional<absl::Status> closing_ ABSL_GUARDED_BY(mu_);
  bool finished_ ABSL_GUARDED_BY(mu_) = false;
};

TraceService::TraceService(Access* access, LaneCoordinator* coordinator, Cluster* cluster)
    : access_(access), coordinator_(coordinator), cluster_(cluster), lane_("trace") {}

TraceService::~TraceService() { Close(); }

void TraceService::SetAddress(const std::string& address) {
  MutexLock lock(&mu_);
  address_ = address;
}

TraceMember TraceService::Head() {
  MutexLock lock(&mu_);
  return DescribeMember(TRACE_ROLE_SERVER, address_, 0);
}

void TraceService::Tell(HeartbeatReply* reply) const {
  const TraceCollector::Order order = collector_.order(MonotonicNanos());
  reply->set_trace(order.trace);
  reply->set_trace_left_ms(static_cast<uint32_t>(absl::ToInt64Milliseconds(order.left)));
}

void TraceService::Close() {
  std::shared_ptr<TraceStream> stream;
  {
    MutexLock lock(&mu_);
    closed_ = true;
    stream = stream_.lock();
  }
  if (stream != nullptr) stream->Close(absl::UnavailableError("the head ends, and with it the trace"));
  lane_.Stop();
}

grpc::ServerWriteReactor<TraceUpdate>* TraceService::Record(Context* context, const RecordRequest* request) {
  const auto stream = std::make_shared<TraceStream>(access_->ConnectionOf(PeerOf(*context)));
  stream->Start();
  const absl::Duration length = absl::Milliseconds(request->milliseconds());
  absl::Status status = access_->Check(context, Role::kObserver, "Record");
  if (status.ok() && (length <= absl::ZeroDuration() || length > limits::kTraceMax)) {
    status = absl::InvalidArgumentError(absl::StrCat("a trace of ", absl::FormatDuration(length),
                                                     ", allowed are 1ms to ",
                                                     absl::FormatDuration(limits::kTraceMax)));
  } else if (status.ok()) {
    status = collector_.Begin(context->peer(),
                              [stream](const TraceUpdate& update) { return stream->Send(update); });
  }
  if (!status.ok()) {
    stream->Close(status);
    return stream.get();
  }
  MutexLock lock(&mu_);
  if (closed_) {
    stream->Close(absl::UnavailableError("the head ends"));
  } else {
    stream_ = stream;
    LogInfo("a trace of {} is recorded for {}", absl::FormatDuration(length), context->peer());
    lane_.Post([this, stream, length] { Watch(stream, length); });
  }
  return stream.get();
}

TraceService::Reactor* TraceService::Clock(Context* context, const ClockRequest* request, ClockReply* reply) {
  reply->set_received_ns(MonotonicNanos());
  Reactor* reactor = new CountedReactor(access_->ConnectionOf(PeerOf(*context)));
  absl::Status status = access_->Check(context, Role::kObserver, "Clock");
  status.Update(collector_.CheckCurrent(request->trace()));
  reply->set_sent_ns(MonotonicNanos());
  reactor->Finish(ToGrpc(status));
  return reactor;
}

TraceService::Reactor* TraceService::Deliver(Context* context, const TraceDelivery* delivery,
                                             TraceReceipt* receipt) {
  Reactor* reactor = new CountedReactor(access_->ConnectionOf(PeerOf(*context)));
  const absl::Status allowed = access_->Check(context, Role::kObserver, "Deliver");
  absl::StatusOr<TraceReceipt> taken =
      allowed.ok() ? collector_.Deliver(*delivery, MonotonicNanos()) : absl::StatusOr<TraceReceipt>(allowed);
  if (taken.ok()) *receipt = *std::move(taken);
  reactor->Finish(ToGrpc(taken.status()));
  return reactor;
}

void TraceService::Watch(const std::shared_ptr<TraceStream>& stream, absl::Duration length) {
  RECON_CHECK(lane_.IsCurrent());
  const Job job = LookAtJob();
  const int64_t begin_ns = MonotonicNanos() + absl::ToInt64Nanoseconds(job.told_within);
  const int64_t end_ns = begin_ns + absl::ToInt64Nanoseconds(length);
  collector_.Announce(job.members, begin_ns, end_ns);
  RecordHere(stream, end_ns);
  TellServers();
  const int64_t patience_ns = MonotonicNanos() + absl::ToInt64Nanoseconds(limits::kTracePatience);
  while (!collector_.complete() && MonotonicNanos() < patience_ns && !stream->WaitForEnd(kPoll)) {
  }
  collector_.End(MonotonicNanos());
  TellServers();  // Where the client has gone, these record still.
  stream->Close(absl::OkStatus());
}

void TraceService::RecordHere(const std::shared_ptr<TraceStream>& stream, int64_t end_ns) {
  RECON_CHECK(lane_.IsCurrent());
  const uint64_t trace = collector_.order(MonotonicNanos()).trace;
  const TraceMember member = Head();
  const auto recording = trace::Recording::Begin(end_ns);
  const auto deliver = [&](bool last) {
    for (TraceDelivery& piece : trace::DrainPieces(recording.get(), last)) {
      piece.set_trace(trace);
      *piece.mutable_member() = member;
      // Its own clock is the head's.
      if (const auto taken = collector_.Deliver(std::move(piece), MonotonicNanos()); !taken.ok()) {
        LogWarn("trace: {}", taken.status().message());
      }
    }
  };
  for (int i = 0; true; ++i) {
    const absl::Duration left = absl::Nanoseconds(end_ns - MonotonicNanos());
    if (left <= absl::ZeroDuration()) break;
    if (i % kIntervalsBetweenOrders == 0) TellServers();
    if (stream->WaitForEnd(std::clamp(left, absl::Milliseconds(1), kInterval))) break;
    deliver(/*last=*/false);
  }
  if (recording != nullptr) recording->Stop();
  deliver(/*last=*/true);
}

void TraceService::TellServers() {
  RECON_CHECK(lane_.IsCurrent());
  if (cluster_ == nullptr) return;
  const TraceCollector::Order order = collector_.order(MonotonicNanos());
  cluster_->TellOfTrace(order.trace, order.left);
}

TraceService::Job TraceService::LookAtJob() {
  RECON_CHECK(lane_.IsCurrent());
  absl::StatusOr<StatusReply> status;
  coordinator_->lane()->RunAndWait([&] { status = coordinator_->Status(Now()); });
  Job job;
  job.members.push_back(Head());
  job.told_within = kHeartbeatDelay;
  if (!status.ok()) return job;
  job.told_within += absl::Milliseconds(status->job().heartbeat_interval_ms());
  const auto add = [&](TraceRole role, const std::string& name, uint32_t number) {
    TraceMember& member = job.members.emplace_back();
    member.set_role(role);
    member.set_name(name);
    member.set_number(number);
  };
  for (const ServerStatus& server : status->servers()) {
    if (server.state() == SERVER_READY) add(TRACE_ROLE_SERVER, server.address(), server.server());
  }
  for (const MemberStatus& member : status->members()) {
    if (member.state() != MEMBER_GONE) add(TRACE_ROLE_WORKER, member.name(), member.worker());
  }
  return job;
}

}  // namespace recon
