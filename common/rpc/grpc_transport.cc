#include "common/rpc/grpc_transport.h"

#include <deque>
#include <optional>
#include <utility>

#include "common/rpc/payload.h"
#include "common/rpc/status_codes.h"
#include "common/transport/envelope.h"

namespace recon {
namespace {

// Whatever ends a stream, a call that had no answer has none: only errors that come again are the caller's.
absl::Status WhyEnded(const grpc::Status& status) {
  switch (status.error_code()) {
    case grpc::StatusCode::INVALID_ARGUMENT:
    case grpc::StatusCode::UNIMPLEMENTED:
    case grpc::StatusCode::UNAUTHENTICATED:
    case grpc::StatusCode::PERMISSION_DENIED:
    case grpc::StatusCode::RESOURCE_EXHAUSTED:
      return FromGrpc(status);
    default:
      return absl::UnavailableError(status.ok() ? "the server ended the connection" : status.error_message());
  }
}

}  // namespace

// One stream; deletes itself when gRPC is done with it and nobody refers to it.
class GrpcTransport::Stream final : public grpc::ClientBidiReactor<grpc::ByteBuffer, grpc::ByteBuffer>,
                                    public std::enable_shared_from_this<Stream> {
 public:
  Stream(GrpcTransport* transport, uint64_t number) : transport_(transport), number_(number) {}

  uint64_t number() const { return number_; }

  void Start() {
    self_ = shared_from_this();
    transport_->stub_.PrepareBidiStreamingCall(&context_, "/recon.Param/Exchange", grpc::StubOptions(), this);
    AddHold();  // Writes are started outside of reactions.
    StartRead(&incoming_);
    StartCall();
  }

  // False if the stream has ended.
  bool Send(grpc::ByteBuffer message) {
    MutexLock lock(&mu_);
    if (ended_) return false;
    outgoing_.push_back(std::move(message));
    if (outgoing_.size() == 1) StartWrite(&outgoing_.front());
    return true;
  }

  void Cancel() {
    context_.TryCancel();
    End();
  }

  void OnReadDone(bool ok) override {
    if (!ok) return End();
    grpc::ByteBuffer message;
    message.Swap(&incoming_);
    StartRead(&incoming_);
    const absl::StatusOr<ByteChain> bytes = ChainOf(message);
    const auto unwrapped = bytes.ok() ? Unwrap(*bytes) : bytes.status();
    if (!unwrapped.ok()) return Cancel();
    const auto& [envelope, body] = *unwrapped;
    transport_->pending_.Finish(envelope.call, ReplyOf(envelope, body));
  }

  void OnWriteDone(bool ok) override {
    if (!ok) return End();
    MutexLock lock(&mu_);
    outgoing_.pop_front();
    if (!outgoing_.empty() && !ended_) StartWrite(&outgoing_.front());
  }

  void OnDone(const grpc::Status& status) override {
    transport_->Ended(number_, WhyEnded(status));
    self_.reset();
  }

 private:
  void End() {
    {
      MutexLock lock(&mu_);
      if (std::exchange(ended_, true)) return;
    }
    RemoveHold();
  }

  GrpcTransport* const transport_;
  const uint64_t number_;
  grpc::ClientContext context_;
  grpc::ByteBuffer incoming_;
  std::shared_ptr<Stream> self_;

  Mutex mu_;
  std::deque<grpc::ByteBuffer> outgoing_ ABSL_GUARDED_BY(mu_);  // The first is being written.
  bool ended_ ABSL_GUARDED_BY(mu_) = false;
};

GrpcTransport::~GrpcTransport() {
  std::shared_ptr<Stream> stream;
  {
    MutexLock lock(&mu_);
    closing_ = true;
    stream = std::move(stream_);
  }
  if (stream != nullptr) stream->Cancel();
  MutexLock lock(&mu_);
  mu_.Await([this] { return open_streams_ == 0; });
}

uint64_t GrpcTransport::Call(const ByteChain& request, Done done) {
  MutexLock lock(&mu_);
  while (true) {
    if (stream_ == nullptr) {
      stream_ = std::make_shared<Stream>(this, ++connections_);
      ++open_streams_;
      stream_->Start();
    }
    // The call is known before its reply can come.
    const uint64_t call = pending_.Add(stream_->number(), std::move(done));
    if (stream_->Send(BufferOf(WrapRequest(call, request)))) return call;
    stream_ = nullptr;
    // The stream may have told it already; if not, it goes with the next one.
    std::optional<Done> untold = pending_.Take(call);
    if (!untold.has_value()) return call;
    done = *std::move(untold);
  }
}

void GrpcTransport::Abandon(uint64_t call, const absl::Status& why) { pending_.Finish(call, why); }

void GrpcTransport::Ended(uint64_t connection, const absl::Status& why) {
  pending_.FailAll(connection, why);
  MutexLock lock(&mu_);
  if (stream_ != nullptr && stream_->number() == connection) stream_ = nullptr;
  --open_streams_;
}

}  // namespace recon
