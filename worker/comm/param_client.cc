#include "worker/comm/param_client.h"

#include <algorithm>
#include <memory>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/strings/str_cat.h"
#include "common/base/check.h"
#include "common/base/clock.h"
#include "common/base/mutex.h"
#include "common/base/pool_allocator.h"
#include "common/codec/frame_about.h"
#include "common/trace/span_names.h"

namespace recon {
namespace {

absl::StatusOr<Frame> DecodeReply(const absl::StatusOr<ByteChain>& reply) {
  if (!reply.ok()) return reply.status();
  absl::StatusOr<Frame> frame = DecodeFrame(*reply);
  if (frame.ok() && frame->header.kind != static_cast<uint8_t>(FrameKind::kReply)) {
    return absl::InvalidArgumentError(absl::StrCat("frame: kind is ", frame->header.kind, ", not a reply"));
  }
  return frame;
}

}  // namespace

ParamClient::ParamClient(Transport* transport)
    : transports_{std::shared_ptr<Transport>(transport, [](Transport*) {})} {}

void ParamClient::Connect(Transports transports, const std::vector<std::string>& addresses) {
  watch_->SetAddresses(addresses);
  MutexLock lock(&mu_);
  transports_.swap(transports);
}

void ParamClient::Disconnect() {
  Transports transports;
  {
    MutexLock lock(&mu_);
    transports = transports_;
  }
  for (const auto& transport : transports) transport->Disconnect();
}

std::shared_ptr<uint8_t[]> ParamClient::PayloadMemory(uint32_t shard, size_t bytes) {
  std::shared_ptr<Transport> transport;
  {
    MutexLock lock(&mu_);
    transport = TransportFor(transports_, shard);
  }
  return transport != nullptr ? transport->RequestMemory(bytes) : nullptr;
}

std::shared_ptr<Transport> ParamClient::TransportFor(const Transports& transports, uint32_t shard) const {
  const uint32_t server = ServerOf(shard);
  return server < transports.size() ? transports[server] : nullptr;
}

// Shared with the callbacks: the last of them still holds the lock when Await() may already return.
struct ParamClient::Exchange::Window {
  Mutex mu;
  std::vector<absl::StatusOr<Frame>> replies ABSL_GUARDED_BY(mu);
  size_t answered ABSL_GUARDED_BY(mu) = 0;
  absl::Time last_answer ABSL_GUARDED_BY(mu);

  bool AllAnswered() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu) { return answered == replies.size(); }
};

ParamClient::Exchange::Exchange(ParamClient* client, FrameKind kind,
                                const std::function<void(Frame)>& on_reply)
    : client_(client),
      kind_(kind),
      on_reply_(&on_reply),
      transports_([client] {
        MutexLock lock(&client->mu_);
        return client->transports_;
      }()),
      window_(MakePooled<Window>()) {}

ParamClient::Exchange::~Exchange() {
  if (!awaited_) Abandon(absl::CancelledError("the exchange was given up"));
}

void ParamClient::Exchange::Send(std::vector<Frame> frames) {
  RECON_CHECK(!awaited_, "frames are sent in an exchange that was waited for");
  size_t number = 0;
  {
    MutexLock lock(&window_->mu);
    number = window_->replies.size();
    window_->replies.resize(number + frames.size());
  }
  calls_.reserve(number + frames.size());
  for (Frame& frame : frames) {
    frame.header.kind = static_cast<uint8_t>(kind_);
    const trace::About about = AboutFrame(frame);
    const int64_t traced_ns = trace::On() && about.worker != 0 ? MonotonicNanos() : 0;
    RECON_CHECK(!frame.parts.empty());
    const uint32_t server = client_->ServerOf(frame.parts.front().shard);
    auto done = Pooled([window = window_, watch = client_->watch_, server, number, take = on_reply_, about,
                        traced_ns](const absl::StatusOr<ByteChain>& bytes) {
      watch->Note(server, bytes.status(), Now());
      if (traced_ns != 0) trace::RecordPassive(trace::kUnderWay, traced_ns, about);
      absl::StatusOr<Frame> reply = DecodeReply(bytes);
      MutexLock lock(&window->mu);
      RECON_CHECK_LT(window->answered, window->replies.size(), "a frame is answered twice");
      RECON_CHECK_LT(number, window->replies.size());
      if (*take && reply.ok()) {
        Frame header;
        header.header = reply->header;
        (*take)(std::exchange(*reply, std::move(header)));
      }
      window->replies[number] = std::move(reply);
      window->last_answer = Now();
      ++window->answered;
    });
    ++number;
    Transport* transport = client_->TransportFor(transports_, frame.parts.front().shard).get();
    if (transport == nullptr) {
      done(absl::UnavailableError("the shard's server is not connected"));
      continue;
    }
    const trace::Span span(trace::kSending, about);
    calls_.push_back({transport, transport->Call(EncodeFrame(std::move(frame)), std::move(done))});
  }
}

std::vector<absl::StatusOr<Frame>> ParamClient::Exchange::Await(absl::Duration deadline,
                                                                absl::Duration silence) {
  const absl::Time end = Now() + deadline;
  RECON_CHECK(!std::exchange(awaited_, true), "an exchange is waited for twice");
  {
    MutexLock lock(&window_->mu);
    window_->last_answer = Now();
    while (!window_->AllAnswered()) {
      const absl::Duration left = std::min(end, window_->last_answer + silence) - Now();
      if (left < absl::Milliseconds(1)) break;  // What is shorter is no wait: its clock has milliseconds.
      (void)window_->mu.AwaitFor(
          left, [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(window_->mu) { return window_->AllAnswered(); });
    }
    if (window_->AllAnswered()) return std::exchange(window_->replies, {});
  }
  Abandon(absl::DeadlineExceededError(
      absl::StrCat("no reply within ", absl::FormatDuration(std::min(deadline, silence)))));
  MutexLock lock(&window_->mu);
  return std::exchange(window_->replies, {});
}

void ParamClient::Exchange::Abandon(const absl::Status& why) {
  for (const Call& call : calls_) call.transport->Abandon(call.number, why);
  MutexLock lock(&window_->mu);
  // A reply may be on its way to its callback.
  window_->mu.Await([this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(window_->mu) { return window_->AllAnswered(); });
}

std::vector<absl::StatusOr<Frame>> ParamClient::CallAll(FrameKind kind, std::vector<Frame> frames,
                                                        absl::Duration deadline,
                                                        const std::function<void(Frame)>& on_reply,
                                                        absl::Duration silence) {
  Exchange exchange(this, kind, on_reply);
  exchange.Send(std::move(frames));
  return exchange.Await(deadline, silence);
}

}  // namespace recon
