#include "common/rpc/grpc_transport.h"

#include <algorithm>
#include <atomic>
#include <utility>

#include "absl/container/flat_hash_set.h"
#include "common/base/check.h"
#include "common/base/clock.h"
#include "common/base/pool_allocator.h"
#include "common/base/status_macros.h"
#include "common/rpc/client_channel.h"
#include "common/rpc/payload.h"
#include "common/rpc/status_codes.h"
#include "common/transport/envelope.h"

namespace recon {
namespace {

constexpr uint64_t kNoConnection = 0;
// For so long a connection that has ended is not tried again while there are others.
constexpr absl::Duration kBroken = absl::Milliseconds(200);

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

// The transport waits for it. Whoever drops the last reference to a channel ends gRPC's threads and must not
// be one of them; a stream's context has such a reference, and the window's threads may be the last to let go
// of a stream.
struct GrpcTransport::Presence {
  explicit Presence(GrpcTransport* in) : transport(in) {}
  ~Presence() {
    MutexLock lock(&transport->presence_mu_);
    transport->present_ = false;
  }
  GrpcTransport* const transport;
};

// One stream; deletes itself when gRPC is done with it and nobody refers to it.
class GrpcTransport::Stream final : public grpc::ClientBidiReactor<grpc::ByteBuffer, grpc::ByteBuffer>,
                                    public std::enable_shared_from_this<Stream> {
 public:
  Stream(std::shared_ptr<Presence> presence, uint64_t number)
      : presence_(std::move(presence)), transport_(presence_->transport), number_(number) {}

  uint64_t number() const { return number_; }

  void Start(grpc::TemplatedGenericStub<grpc::ByteBuffer, grpc::ByteBuffer>* stub) {
    self_ = shared_from_this();
    transport_->caller_.AddTo(&context_);
    stub->PrepareBidiStreamingCall(&context_, "/recon.Param/Exchange", grpc::StubOptions(), this);
    AddHold();  // Writes are started outside of reactions.
    StartRead(&incoming_);
    StartCall();
  }

  // How many calls it has that are neither taken nor answered, and is about to have. Without its lock, which
  // is held while gRPC writes.
  int reserved() const { return reserved_.load(std::memory_order_relaxed); }
  void Reserve() { reserved_.fetch_add(1, std::memory_order_relaxed); }
  void Unreserve() {
    const int before = reserved_.fetch_sub(1, std::memory_order_relaxed);
    RECON_CHECK_GT(before, 0, "a stream is reserved for fewer calls than it has");
  }

  // A call it was reserved for. False if the stream has ended.
  bool Write(uint64_t call, grpc::ByteBuffer* message) {
    MutexLock lock(&mu_);
    if (ended_) return false;
    const bool is_new = under_way_.insert(call).second;
    RECON_CHECK(is_new, "a call is written to a stream twice");
    unwritten_.emplace_back();
    unwritten_.back().call = call;
    unwritten_.back().message.Swap(message);
    WriteNext();
    return true;
  }

  // A call that has not been written is not written any more.
  void Drop(uint64_t call) {
    grpc::ByteBuffer dropped;  // Its owners are released without the lock.
    {
      MutexLock lock(&mu_);
      const auto is_call = [call](const Unwritten& unwritten) { return unwritten.call == call; };
      const auto found = std::find_if(unwritten_.begin(), unwritten_.end(), is_call);
      if (found == unwritten_.end()) return;
      dropped.Swap(&found->message);
      unwritten_.erase(found);
    }
    Release(call);
  }

  void Cancel() {
    context_.TryCancel();
    End();
  }

  void OnReadDone(bool ok) override {
    if (!ok) return End();
    const absl::StatusOr<ByteChain> bytes = ChainOf(&incoming_);
    const auto unwrapped = bytes.ok() ? Unwrap(*bytes) : bytes.status();
    if (!unwrapped.ok()) return Cancel();
    const auto& [envelope, body] = *unwrapped;
    // What is sent now takes along what HTTP/2 has to say of the message that was read. Asked for more, gRPC
    // would write that by itself.
    Release(envelope.call);
    StartRead(&incoming_);
    if (envelope.code != kTaken) transport_->pending_.Finish(envelope.call, ReplyOf(envelope, body));
  }

  void OnWriteDone(bool ok) override {
    if (!ok) return End();
    MutexLock lock(&mu_);
    RECON_CHECK(writing_);
    writing_ = false;
    outgoing_.Clear();  // Its owners may be waiting for it.
    WriteNext();
  }

  void OnDone(const grpc::Status& status) override {
    const std::shared_ptr<Stream> self = std::move(self_);
    transport_->Ended(number_, WhyEnded(status));
  }

 private:
  struct Unwritten {
    uint64_t call = 0;
    grpc::ByteBuffer message;
  };

  // It leaves the window.
  void Release(uint64_t call) {
    {
      MutexLock lock(&mu_);
      if (under_way_.erase(call) == 0) return;
    }
    Unreserve();
    transport_->requests_->Release(call);
  }

  void WriteNext() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    if (writing_ || ended_ || unwritten_.empty()) return;
    outgoing_.Swap(&unwritten_.front().message);
    unwritten_.pop_front();
    writing_ = true;
    StartWrite(&outgoing_);
  }

  void End() {
    PooledDeque<Unwritten> unwritten;  // Its owners are released without the lock.
    absl::flat_hash_set<uint64_t> under_way;
    {
      MutexLock lock(&mu_);
      if (std::exchange(ended_, true)) return;
      unwritten.swap(unwritten_);
      under_way.swap(under_way_);
    }
    for (const uint64_t call : under_way) transport_->requests_->Release(call);
    RemoveHold();
  }

  const std::shared_ptr<Presence> presence_;  // The first, so that it ends last.
  GrpcTransport* const transport_;
  const uint64_t number_;
  grpc::ClientContext context_;
  grpc::ByteBuffer incoming_;
  std::shared_ptr<Stream> self_;
  std::atomic<int> reserved_{0};

  Mutex mu_;
  absl::flat_hash_set<uint64_t> under_way_ ABSL_GUARDED_BY(mu_);
  PooledDeque<Unwritten> unwritten_ ABSL_GUARDED_BY(mu_);
  grpc::ByteBuffer outgoing_ ABSL_GUARDED_BY(mu_);
  bool writing_ ABSL_GUARDED_BY(mu_) = false;
  bool ended_ ABSL_GUARDED_BY(mu_) = false;
};

GrpcTransport::GrpcTransport(const std::vector<std::shared_ptr<grpc::Channel>>& channels,
                             std::shared_ptr<SendWindow> window, Caller caller)
    : caller_(std::move(caller)),
      presence_(std::make_shared<Presence>(this)),
      requests_(std::make_shared<OutgoingRequests>(
          std::move(window),
          [presence = std::weak_ptr<Presence>(presence_)](uint64_t call, const ByteChain& message) {
            if (const auto here = presence.lock()) here->transport->Send(call, message);
          })) {
  RECON_CHECK(!channels.empty());
  for (const auto& channel : channels) {
    lines_.push_back({grpc::TemplatedGenericStub<grpc::ByteBuffer, grpc::ByteBuffer>(channel), nullptr});
  }
}

GrpcTransport::~GrpcTransport() {
  {
    MutexLock lock(&mu_);
    closing_ = true;
  }
  Disconnect();
  requests_->End();
  presence_.reset();
  MutexLock lock(&presence_mu_);
  presence_mu_.Await([this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(presence_mu_) { return !present_; });
}

uint64_t GrpcTransport::Call(const ByteChain& request, Done done) {
  const uint64_t call = pending_.Add(kNoConnection, std::move(done));
  requests_->Add(call, WrapRequest(call, request));
  return call;
}

void GrpcTransport::Send(uint64_t call, const ByteChain& message) {
  grpc::ByteBuffer buffer = BufferOf(message);
  while (pending_.Has(call)) {  // If not, it was given up while it waited.
    const std::shared_ptr<Stream> stream = LeastBusyStream();
    if (stream == nullptr) {
      pending_.Finish(call, absl::UnavailableError("the connection was cut"));
      break;
    }
    // It is known whose call it is before a reply can come.
    if (!pending_.Assign(call, stream->number())) {
      stream->Unreserve();
      break;
    }
    if (stream->Write(call, &buffer)) return;
    Forget(stream->number());
  }
  requests_->Release(call);
}

std::shared_ptr<GrpcTransport::Stream> GrpcTransport::LeastBusyStream() {
  const absl::Time now = Now();
  // One that fails at once always has nothing to do.
  const auto busy = [now](const Line& line) {
    return std::make_pair(line.stream == nullptr && now < line.broken_until,
                          line.stream == nullptr ? 0 : line.stream->reserved());
  };
  MutexLock lock(&mu_);
  if (closing_) return nullptr;
  Line& line = *std::min_element(lines_.begin(), lines_.end(),
                                 [&](const Line& a, const Line& b) { return busy(a) < busy(b); });
  if (line.stream == nullptr) {
    line.stream = std::make_shared<Stream>(presence_, ++connections_);
    line.stream->Start(&line.stub);
  }
  line.stream->Reserve();
  return line.stream;
}

void GrpcTransport::Abandon(uint64_t call, const absl::Status& why) {
  requests_->Drop(call);
  std::vector<std::shared_ptr<Stream>> streams;
  {
    MutexLock lock(&mu_);
    for (const Line& line : lines_) streams.push_back(line.stream);
  }
  for (const auto& stream : streams) {
    if (stream != nullptr) stream->Drop(call);
  }
  pending_.Finish(call, why);
}

void GrpcTransport::Disconnect() {
  std::vector<std::shared_ptr<Stream>> streams;
  {
    MutexLock lock(&mu_);
    for (Line& line : lines_) streams.push_back(std::exchange(line.stream, nullptr));
  }
  FailWaiting(absl::UnavailableError("the connection was cut"));
  for (const auto& stream : streams) {
    if (stream != nullptr) stream->Cancel();
  }
}

void GrpcTransport::FailWaiting(const absl::Status& why) {
  for (const uint64_t call : pending_.FailAll(kNoConnection, why)) requests_->Drop(call);
}

void GrpcTransport::Ended(uint64_t connection, const absl::Status& why) {
  const bool last = Forget(connection);
  pending_.FailAll(connection, why);
  if (last) FailWaiting(why);
}

bool GrpcTransport::Forget(uint64_t connection) {
  std::shared_ptr<Stream> stream;  // Released without the lock.
  MutexLock lock(&mu_);
  bool others = false;
  for (Line& line : lines_) {
    if (line.stream == nullptr) continue;
    if (line.stream->number() != connection) {
      others = true;
      continue;
    }
    stream = std::move(line.stream);
    line.broken_until = Now() + kBroken;
  }
  return stream != nullptr && !others;
}

absl::StatusOr<std::unique_ptr<Transport>> ConnectForFrames(const std::string& address, const TlsFlags& tls,
                                                            int connections,
                                                            std::shared_ptr<SendWindow> window,
                                                            Caller caller) {
  std::vector<std::shared_ptr<grpc::Channel>> channels(static_cast<size_t>(connections));
  for (int i = 0; i < connections; ++i) {
    RECON_ASSIGN_OR_RETURN(channels[static_cast<size_t>(i)], ConnectTo(address, tls, i + 1));
  }
  return std::make_unique<GrpcTransport>(channels, std::move(window), std::move(caller));
}

}  // namespace recon
