#include "common/shm/shm_transport.h"

#include <algorithm>
#include <utility>

#include "common/base/check.h"
#include "common/base/clock.h"
#include "common/base/limits.h"
#include "common/base/log.h"
#include "common/shm/shm_socket.h"
#include "common/transport/envelope.h"
#include "common/transport/outgoing_requests.h"

namespace recon {
namespace {

// Between two tries to connect to a server that is not there; longer if a try takes long, so that trying
// takes at most a twentieth of the time; and to one that has refused.
constexpr absl::Duration kRetry = absl::Milliseconds(200);
constexpr int kRetryOfTry = 20;
constexpr absl::Duration kRetryRefused = absl::Minutes(5);
// Calls over the other transport have odd numbers.
constexpr uint64_t kOtherwise = 1;
// Of what RequestMemory() gives: a cache line.
constexpr size_t kAlignment = 64;

}  // namespace

struct ShmTransport::Connection {
  uint64_t number = 0;
  std::shared_ptr<OutgoingRequests> requests;
  // A slot that RequestMemory() gives away piece by piece, and how much it has given.
  std::shared_ptr<uint8_t[]> slot;
  size_t used = 0;
  std::unique_ptr<ShmPeer> peer;  // Last: its thread uses the rest.
};

ShmTransport::ShmTransport(std::string name, std::unique_ptr<Transport> otherwise, std::string secret)
    : name_(std::move(name)), secret_(std::move(secret)), otherwise_(std::move(otherwise)) {}

ShmTransport::~ShmTransport() {
  {
    MutexLock lock(&mu_);
    next_try_ = absl::InfiniteFuture();
    // Its thread ends its calls, and puts it among the ended ones; those are joined without the lock.
    if (connection_ != nullptr) connection_->peer->Close();
  }
  std::vector<std::unique_ptr<Connection>> ended;
  {
    MutexLock lock(&mu_);
    mu_.Await([this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) { return connection_ == nullptr; });
    ended.swap(ended_);
  }
}

bool ShmTransport::Connected() {
  MutexLock lock(&mu_);
  return ConnectedLocked();
}

bool ShmTransport::ConnectedLocked() {
  if (connection_ != nullptr) return true;
  if (Now() < next_try_) return false;
  const absl::Time start = Now();
  absl::StatusOr<std::unique_ptr<ShmPeer>> peer = ConnectShm(name_, secret_);
  if (!peer.ok()) {
    const bool refused = absl::IsPermissionDenied(peer.status());
    next_try_ = Now() + (refused ? kRetryRefused : std::max(kRetry, kRetryOfTry * (Now() - start)));
    if (!std::exchange(over_network_, true)) {
      LogInfo("frames go over the network: {}", peer.status().message());
    }
    return false;
  }
  ended_.clear();  // Joins threads that have no more to do than to end their calls.
  connection_ = std::make_unique<Connection>();
  connection_->number = ++connections_;
  connection_->peer = *std::move(peer);
  connection_->requests = std::make_shared<OutgoingRequests>(
      window_, [sender = connection_->peer->sender()](uint64_t, const ByteChain& message) {
        sender.Send(message);  // If it is closed, OnClosed() ends the call.
      });
  Connection* connection = connection_.get();
  const absl::Status started = connection->peer->Start(
      [this, connection](const ByteChain& message) { OnMessage(connection, message); },
      [this, connection](const absl::Status& why) { OnClosed(connection, why); });
  if (started.ok()) {
    over_network_ = false;
    LogInfo("frames go through shared memory");
    return true;
  }
  connection_ = nullptr;
  next_try_ = Now() + kRetryRefused;
  if (!std::exchange(over_network_, true)) LogInfo("frames go over the network: {}", started.message());
  return false;
}

uint64_t ShmTransport::Call(const ByteChain& request, Done done) {
  std::shared_ptr<OutgoingRequests> requests;
  uint64_t call = 0;
  {
    MutexLock lock(&mu_);
    if (request.size() <= limits::kFrameBytesMax && ConnectedLocked()) {
      call = pending_.Add(connection_->number, std::move(done));
      requests = connection_->requests;
    }
  }
  if (requests != nullptr) {
    requests->Add(call, WrapRequest(call, request));  // If it has ended, OnClosed() ends the call.
    return 2 * call;
  }
  return 2 * otherwise_->Call(request, std::move(done)) + kOtherwise;
}

void ShmTransport::Abandon(uint64_t call, const absl::Status& why) {
  if (call % 2 == kOtherwise) return otherwise_->Abandon(call / 2, why);
  std::shared_ptr<OutgoingRequests> requests;
  {
    MutexLock lock(&mu_);
    if (connection_ != nullptr) requests = connection_->requests;
  }
  if (requests != nullptr) requests->Drop(call / 2);
  pending_.Finish(call / 2, why);
}

void ShmTransport::Disconnect() {
  {
    MutexLock lock(&mu_);
    if (connection_ != nullptr) connection_->peer->Close();
  }
  otherwise_->Disconnect();
}

std::shared_ptr<uint8_t[]> ShmTransport::RequestMemory(size_t bytes) {
  if (bytes > kShmSlotBytes) return nullptr;
  std::shared_ptr<uint8_t[]> full;  // Given back without the lock.
  MutexLock lock(&mu_);
  if (!ConnectedLocked()) return nullptr;
  Connection& to = *connection_;
  to.used = (to.used + kAlignment - 1) / kAlignment * kAlignment;
  if (to.slot == nullptr || to.used + bytes > kShmSlotBytes) {
    full = std::exchange(to.slot, to.peer->sender().Reserve(kShmSlotBytes));
    to.used = 0;
  }
  if (to.slot == nullptr) return nullptr;
  std::shared_ptr<uint8_t[]> memory(to.slot, to.slot.get() + to.used);
  to.used += bytes;
  RECON_CHECK_LE(to.used, kShmSlotBytes);
  return memory;
}

void ShmTransport::OnMessage(Connection* connection, const ByteChain& message) {
  const auto unwrapped = Unwrap(message);
  if (!unwrapped.ok()) return connection->peer->Close();
  const auto& [envelope, body] = *unwrapped;
  connection->requests->Release(envelope.call);
  if (envelope.code != kTaken) pending_.Finish(envelope.call, ReplyOf(envelope, body));
}

void ShmTransport::OnClosed(Connection* connection, const absl::Status& why) {
  const uint64_t number = connection->number;
  const std::shared_ptr<OutgoingRequests> requests = connection->requests;
  {
    MutexLock lock(&mu_);  // No call is added to it afterwards.
    RECON_CHECK(connection_.get() == connection, "a connection ends that is not the one there is");
    ended_.push_back(std::move(connection_));
  }
  requests->End();
  pending_.FailAll(number, absl::UnavailableError(why.message()));
}

}  // namespace recon
