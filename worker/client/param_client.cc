#include "worker/client/param_client.h"

#include <memory>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/strings/str_cat.h"
#include "common/base/mutex.h"

namespace recon {
namespace {

// Frames under way of one CallAll(). Shared with the callbacks: the last of them still holds the lock when
// the caller may already return.
struct Window {
  Mutex mu;
  size_t answered ABSL_GUARDED_BY(mu) = 0;
};

absl::StatusOr<Frame> DecodeReply(const absl::StatusOr<ByteChain>& reply) {
  if (!reply.ok()) return reply.status();
  return DecodeFrame(*reply);
}

}  // namespace

std::vector<absl::StatusOr<Frame>> ParamClient::CallAll(FrameKind kind, std::vector<Frame> frames,
                                                        absl::Duration deadline) {
  std::vector<absl::StatusOr<Frame>> replies(frames.size());
  std::vector<uint64_t> calls;
  calls.reserve(frames.size());
  const auto window = std::make_shared<Window>();
  for (size_t i = 0; i < frames.size(); ++i) {
    frames[i].header.kind = static_cast<uint8_t>(kind);
    calls.push_back(transport_->Call(EncodeFrame(std::move(frames[i])),
                                     [window, reply = &replies[i]](const absl::StatusOr<ByteChain>& bytes) {
                                       *reply = DecodeReply(bytes);
                                       MutexLock lock(&window->mu);
                                       ++window->answered;
                                     }));
  }
  const auto all_answered = [&] { return window->answered == replies.size(); };
  {
    MutexLock lock(&window->mu);
    if (window->mu.AwaitFor(deadline, all_answered)) return replies;
  }
  const absl::Status late =
      absl::DeadlineExceededError(absl::StrCat("no reply within ", absl::FormatDuration(deadline)));
  for (const uint64_t call : calls) transport_->Abandon(call, late);
  MutexLock lock(&window->mu);
  window->mu.Await(all_answered);  // A reply may be on its way to its callback.
  return replies;
}

}  // namespace recon
