#include "common/rpc/trace_reporter.h"

#include <pthread.h>
#include <unistd.h>

#include <algorithm>
#include <utility>

#include "common/base/check.h"
#include "common/base/clock.h"
#include "common/base/log.h"
#include "common/base/start_thread.h"
#include "common/trace/span_pieces.h"

namespace recon {
namespace {

// Between two deliveries: a ring holds what its thread does meanwhile.
constexpr absl::Duration kInterval = absl::Milliseconds(100);
// Clocks are read that often at the trace's begin and end, where the reading with the shortest way decides,
// and between them once in so many deliveries.
constexpr int kReadings = 8;
constexpr int kReadingsBetween = 2;
constexpr int kDeliveriesBetween = 10;

}  // namespace

TraceMember DescribeMember(TraceRole role, const std::string& name, uint32_t number) {
  TraceMember member;
  member.set_role(role);
  member.set_name(name);
  member.set_number(number);
  member.set_process(static_cast<uint32_t>(getpid()));
  char host[256] = "";
  gethostname(host, sizeof host - 1);
  member.set_host(host);
  return member;
}

TraceReporter::~TraceReporter() {
  {
    MutexLock lock(&mu_);
    stop_ = true;
  }
  if (thread_.joinable()) thread_.join();
}

void TraceReporter::Follow(uint64_t trace, absl::Duration left, const TraceMember& member) {
  {
    MutexLock lock(&mu_);
    if (trace == trace_) return;
    stop_ = true;
    // One that is not over yet is asked for again with the next heartbeat.
    if (trace == 0 || !over_) return;
    trace_ = trace;
    stop_ = false;
    over_ = false;
  }
  if (thread_.joinable()) thread_.join();
  number_ = trace;
  member_ = member;
  const int64_t deadline_ns = MonotonicNanos() + absl::ToInt64Nanoseconds(left);
  const absl::Status started = StartThread([this, deadline_ns] { Run(deadline_ns); }, &thread_);
  if (started.ok()) return;
  LogWarn("no trace is recorded here: {}", started.message());
  MutexLock lock(&mu_);
  over_ = true;
}

void TraceReporter::Run(int64_t deadline_ns) {
  pthread_setname_np(pthread_self(), "trace");
  clock_.clear();
  dropped_ = 0;
  wanted_ = true;
  const std::unique_ptr<trace::Recording> recording = trace::Recording::Begin(deadline_ns);
  ReadClocks(kReadings);
  for (int i = 1; wanted_ && recording != nullptr && Pause(deadline_ns); ++i) {
    if (i % kDeliveriesBetween == 0) ReadClocks(kReadingsBetween);
    Deliver(recording.get(), /*last=*/false);
  }
  if (recording != nullptr) recording->Stop();
  ReadClocks(kReadings);
  Deliver(recording.get(), /*last=*/true);
  MutexLock lock(&mu_);
  RECON_CHECK(!over_);
  over_ = true;
}

bool TraceReporter::Pause(int64_t deadline_ns) {
  const absl::Duration left = absl::Nanoseconds(deadline_ns - MonotonicNanos());
  if (left <= absl::ZeroDuration()) return false;
  MutexLock lock(&mu_);
  return !mu_.AwaitFor(std::clamp(left, absl::Milliseconds(1), kInterval),
                       [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) { return stop_; });
}

void TraceReporter::ReadClocks(int times) {
  for (int i = 0; i < times && wanted_; ++i) {
    const absl::StatusOr<ClockSample> sample = client_.ReadClock(number_);
    if (!sample.ok()) return;
    clock_.push_back(*sample);
  }
}

void TraceReporter::Deliver(trace::Recording* recording, bool last) {
  for (TraceDelivery& piece : trace::DrainPieces(recording, last)) DeliverPiece(std::move(piece));
}

void TraceReporter::DeliverPiece(TraceDelivery piece) {
  piece.mutable_clock()->Add(clock_.begin(), clock_.end());
  piece.set_dropped(piece.dropped() + dropped_);
  const bool empty =
      piece.spans().name_size() == 0 && clock_.empty() && piece.dropped() == 0 && !piece.last();
  if (empty || !wanted_) return;
  piece.set_trace(number_);
  *piece.mutable_member() = member_;
  const absl::StatusOr<TraceReceipt> receipt = client_.Deliver(piece);
  if (receipt.ok()) {
    clock_.clear();
    dropped_ = 0;
    wanted_ = !receipt->stop();
  } else {
    dropped_ = piece.dropped() + static_cast<uint64_t>(piece.spans().name_size());
    wanted_ = absl::IsUnavailable(receipt.status()) || absl::IsDeadlineExceeded(receipt.status());
  }
}

}  // namespace recon
