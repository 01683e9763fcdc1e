#include "worker/comm/param_client.h"

#include <algorithm>
#include <memory>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/strings/str_cat.h"
#include "common/base/clock.h"
#include "common/base/mutex.h"
#include "common/base/pool_allocator.h"

namespace recon {
namespace {

// Frames under way of one CallAll(). Shared with the callbacks: the last of them still holds the lock when
// the caller may already return.
struct Window {
  Mutex mu;
  size_t answered ABSL_GUARDED_BY(mu) = 0;
  absl::Time last_answer ABSL_GUARDED_BY(mu);
};

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

void ParamClient::Connect(Transports transports) {
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
  const uint32_t server = shard < server_of_shard_.size() ? server_of_shard_[shard] : 0;
  return server < transports.size() ? transports[server] : nullptr;
}

std::vector<absl::StatusOr<Frame>> ParamClient::CallAll(FrameKind kind, std::vector<Frame> frames,
                                                        absl::Duration deadline,
                                                        const std::function<void(Frame)>& on_reply,
                                                        absl::Duration silence) {
  std::vector<absl::StatusOr<Frame>> replies(frames.size());
  Transports transports;
  {
    MutexLock lock(&mu_);
    transports = transports_;
  }
  struct Call {
    Transport* transport;
    uint64_t number;
  };
  PooledVector<Call> calls;
  calls.reserve(frames.size());
  const auto window = MakePooled<Window>();
  for (size_t i = 0; i < frames.size(); ++i) {
    frames[i].header.kind = static_cast<uint8_t>(kind);
    auto done =
        Pooled([window, reply = &replies[i], take = &on_reply](const absl::StatusOr<ByteChain>& bytes) {
          *reply = DecodeReply(bytes);
          MutexLock lock(&window->mu);
          if (*take && reply->ok()) {
            Frame header;
            header.header = (*reply)->header;
            (*take)(std::exchange(**reply, std::move(header)));
          }
          window->last_answer = Now();
          ++window->answered;
        });
    Transport* transport = TransportFor(transports, frames[i].parts.front().shard).get();
    if (transport == nullptr) {
      done(absl::UnavailableError("the shard's server is not connected"));
      continue;
    }
    calls.push_back({transport, transport->Call(EncodeFrame(std::move(frames[i])), std::move(done))});
  }
  const absl::Time end = Now() + deadline;
  const auto all_answered = [&] { return window->answered == replies.size(); };
  {
    MutexLock lock(&window->mu);
    window->last_answer = Now();
    while (!all_answered()) {
      const absl::Duration left = std::min(end, window->last_answer + silence) - Now();
      if (left < absl::Milliseconds(1)) break;  // What is shorter is no wait: its clock has milliseconds.
      (void)window->mu.AwaitFor(left, all_answered);
    }
    if (all_answered()) return replies;
  }
  const absl::Status late = absl::DeadlineExceededError(
      absl::StrCat("no reply within ", absl::FormatDuration(std::min(deadline, silence))));
  for (const Call& call : calls) call.transport->Abandon(call.number, late);
  MutexLock lock(&window->mu);
  // A reply may be on its way to its callback.
  window->mu.Await(all_answered);
  return replies;
}

}  // namespace recon
