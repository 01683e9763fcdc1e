#include "common/rpc/grpc_transport.h"

#include <algorithm>
#include <deque>
#include <optional>
#include <utility>

#include "common/base/status_macros.h"
#include "common/rpc/client_channel.h"
#include "common/rpc/payload.h"
#include "common/rpc/status_codes.h"
#include "common/transport/envelope.h"
#include "common/transport/outgoing_requests.h"

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
  Stream(GrpcTransport* transport, uint64_t number)
      : presence_(transport), transport_(transport), number_(number) {}

  uint64_t number() const { return number_; }

  void Start(grpc::TemplatedGenericStub<grpc::ByteBuffer, grpc::ByteBuffer>* stub) {
    self_ = shared_from_this();
    requests_ = std::make_shared<OutgoingRequests>(
        transport_->window_, [stream = weak_from_this()](uint64_t call, const ByteChain& message) {
          if (const auto self = stream.lock()) {
            self->Write(call, BufferOf(message));
          }
        });
    stub->PrepareBidiStreamingCall(&context_, "/recon.Param/Exchange", grpc::StubOptions(), this);
    AddHold();  // Writes are started outside of reactions.
    StartRead(&incoming_);
    StartCall();
  }

  // False if the stream has ended.
  bool Send(uint64_t call, const ByteChain& request) {
    return requests_->Add(call, WrapRequest(call, request));
  }
  // A call that has not been sent is not sent any more.
  void Drop(uint64_t call) {
    requests_->Drop(call);
    grpc::ByteBuffer dropped;  // Its owners are released without the lock.
    {
      MutexLock lock(&mu_);
      const auto is_call = [call](const Unwritten& unwritten) { return unwritten.call == call; };
      const auto found = std::find_if(unwritten_.begin(), unwritten_.end(), is_call);
      if (found == unwritten_.end()) return;
      dropped.Swap(&found->message);
      unwritten_.erase(found);
    }
    requests_->Release(call);
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
    requests_->Release(envelope.call);
    if (envelope.code != kTaken) transport_->pending_.Finish(envelope.call, ReplyOf(envelope, body));
  }

  void OnWriteDone(bool ok) override {
    if (!ok) return End();
    MutexLock lock(&mu_);
    writing_ = false;
    outgoing_.Clear();  // Its owners may be waiting for it.
    WriteNext();
  }

  void OnDone(const grpc::Status& status) override {
    const std::shared_ptr<Stream> self = std::move(self_);
    transport_->Forget(number_);
    transport_->pending_.FailAll(number_, WhyEnded(status));
  }

 private:
  // The transport waits for it. Whoever drops the last reference to a channel ends gRPC's threads and must
  // not be one of them; the context has such a reference, and the window's threads may be the last to let go.
  struct Presence {
    explicit Presence(GrpcTransport* in) : transport(in) {
      MutexLock lock(&transport->streams_mu_);
      ++transport->streams_;
    }
    ~Presence() {
      MutexLock lock(&transport->streams_mu_);
      --transport->streams_;
    }
    GrpcTransport* const transport;
  };

  struct Unwritten {
    uint64_t call = 0;
    grpc::ByteBuffer message;
  };

  void Write(uint64_t call, grpc::ByteBuffer message) {
    MutexLock lock(&mu_);
    if (ended_) return;
    unwritten_.emplace_back();
    unwritten_.back().call = call;
    unwritten_.back().message.Swap(&message);
    WriteNext();
  }

  void WriteNext() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    if (writing_ || ended_ || unwritten_.empty()) return;
    outgoing_.Swap(&unwritten_.front().message);
    unwritten_.pop_front();
    writing_ = true;
    StartWrite(&outgoing_);
  }

  void End() {
    std::deque<Unwritten> unwritten;  // Its owners are released without the lock.
    {
      MutexLock lock(&mu_);
      if (std::exchange(ended_, true)) return;
      unwritten.swap(unwritten_);
    }
    requests_->End();
    RemoveHold();
  }

  const Presence presence_;  // The first, so that it ends last.
  GrpcTransport* const transport_;
  const uint64_t number_;
  grpc::ClientContext context_;
  grpc::ByteBuffer incoming_;
  std::shared_ptr<Stream> self_;
  std::shared_ptr<OutgoingRequests> requests_;  // Set by Start().

  Mutex mu_;
  std::deque<Unwritten> unwritten_ ABSL_GUARDED_BY(mu_);  // Admitted by the window.
  grpc::ByteBuffer outgoing_ ABSL_GUARDED_BY(mu_);
  bool writing_ ABSL_GUARDED_BY(mu_) = false;
  bool ended_ ABSL_GUARDED_BY(mu_) = false;
};

GrpcTransport::GrpcTransport(const std::vector<std::shared_ptr<grpc::Channel>>& channels,
                             std::shared_ptr<SendWindow> window)
    : window_(std::move(window)) {
  for (const auto& channel : channels) {
    lines_.push_back({grpc::TemplatedGenericStub<grpc::ByteBuffer, grpc::ByteBuffer>(channel), nullptr});
  }
}

GrpcTransport::~GrpcTransport() {
  Disconnect();
  MutexLock lock(&streams_mu_);
  streams_mu_.Await([this] { return streams_ == 0; });
}

uint64_t GrpcTransport::Call(const ByteChain& request, Done done) {
  MutexLock lock(&mu_);
  Line& line = lines_[next_line_++ % lines_.size()];
  while (true) {
    if (line.stream == nullptr) {
      line.stream = std::make_shared<Stream>(this, ++connections_);
      line.stream->Start(&line.stub);
    }
    // The call is known before its reply can come.
    const uint64_t call = pending_.Add(line.stream->number(), std::move(done));
    if (line.stream->Send(call, request)) return call;
    line.stream = nullptr;
    // The stream may have told it already; if not, it goes with the next one.
    std::optional<Done> untold = pending_.Take(call);
    if (!untold.has_value()) return call;
    done = *std::move(untold);
  }
}

void GrpcTransport::Abandon(uint64_t call, const absl::Status& why) {
  {
    MutexLock lock(&mu_);
    for (const Line& line : lines_) {
      if (line.stream != nullptr) line.stream->Drop(call);
    }
  }
  pending_.Finish(call, why);
}

void GrpcTransport::Disconnect() {
  std::vector<std::shared_ptr<Stream>> streams;
  {
    MutexLock lock(&mu_);
    for (Line& line : lines_) streams.push_back(std::exchange(line.stream, nullptr));
  }
  for (const auto& stream : streams) {
    if (stream != nullptr) stream->Cancel();
  }
}

void GrpcTransport::Forget(uint64_t connection) {
  std::shared_ptr<Stream> stream;
  MutexLock lock(&mu_);
  for (Line& line : lines_) {
    if (line.stream != nullptr && line.stream->number() == connection) stream = std::move(line.stream);
  }
}

absl::StatusOr<std::unique_ptr<Transport>> ConnectForFrames(const std::string& address, const TlsFlags& tls,
                                                            int connections,
                                                            std::shared_ptr<SendWindow> window) {
  std::vector<std::shared_ptr<grpc::Channel>> channels(static_cast<size_t>(connections));
  for (int i = 0; i < connections; ++i) {
    RECON_ASSIGN_OR_RETURN(channels[static_cast<size_t>(i)], ConnectTo(address, tls, i + 1));
  }
  return std::make_unique<GrpcTransport>(channels, std::move(window));
}

}  // namespace recon
