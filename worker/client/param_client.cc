#include "worker/client/param_client.h"

#include <string>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "common/base/limits.h"
#include "common/base/mutex.h"
#include "common/rpc/payload.h"
#include "common/rpc/status_codes.h"

namespace recon {
namespace {

std::string MethodOf(FrameKind kind) {
  switch (kind) {
    case FrameKind::kPull:
      return "/recon.Param/Pull";
    case FrameKind::kPush:
      return "/recon.Param/Push";
    case FrameKind::kPushPull:
      return "/recon.Param/PushPull";
    case FrameKind::kInit:
    case FrameKind::kReply:
      break;
  }
  return "/recon.Param/Init";
}

// Frames under way of one CallAll(). Shared with the callbacks: the last of them still holds the lock when
// the caller may already return.
struct Window {
  Mutex mu;
  int in_flight ABSL_GUARDED_BY(mu) = 0;
};

// One frame under way; lives until its callback has run.
struct Call {
  grpc::ClientContext context;
  grpc::ByteBuffer request;
  grpc::ByteBuffer response;
};

absl::StatusOr<Frame> DecodeReply(const grpc::Status& status, const grpc::ByteBuffer& response) {
  if (!status.ok()) return FromGrpc(status);
  const absl::StatusOr<ByteChain> bytes = ChainOf(response);
  if (!bytes.ok()) return bytes.status();
  return DecodeFrame(*bytes);
}

}  // namespace

std::vector<absl::StatusOr<Frame>> ParamClient::CallAll(FrameKind kind, std::vector<Frame> frames,
                                                        absl::Duration deadline) {
  std::vector<absl::StatusOr<Frame>> replies(frames.size());
  const std::string method = MethodOf(kind);
  const auto window = std::make_shared<Window>();
  const bool gradient = kind == FrameKind::kPush || kind == FrameKind::kPushPull;
  const int in_flight_max = gradient ? static_cast<int>(frames.size()) : limits::kFramesInFlight;
  for (size_t i = 0; i < frames.size(); ++i) {
    {
      MutexLock lock(&window->mu);
      window->mu.Await([&] { return window->in_flight < in_flight_max; });
      ++window->in_flight;
    }
    auto* call = new Call;
    call->context.set_deadline(absl::ToChronoTime(absl::Now() + deadline));
    frames[i].header.kind = static_cast<uint8_t>(kind);
    call->request = BufferOf(EncodeFrame(std::move(frames[i])));
    stub_.UnaryCall(&call->context, method, grpc::StubOptions(), &call->request, &call->response,
                    [call, window, reply = &replies[i]](const grpc::Status& status) {
                      *reply = DecodeReply(status, call->response);
                      delete call;
                      MutexLock lock(&window->mu);
                      --window->in_flight;
                    });
  }
  MutexLock lock(&window->mu);
  window->mu.Await([&] { return window->in_flight == 0; });
  return replies;
}

}  // namespace recon
