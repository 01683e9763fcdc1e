#include "common/shm/shm_listener.h"

#include <poll.h>
#include <pthread.h>
#include <sys/eventfd.h>

#include <utility>

#include "common/base/clock.h"
#include "common/base/log.h"
#include "common/base/pool_allocator.h"
#include "common/base/sleep.h"
#include "common/base/status_macros.h"
#include "common/shm/shm_socket.h"
#include "common/transport/envelope.h"

namespace recon {
namespace {

constexpr absl::Duration kRefusalPause = absl::Milliseconds(50);
constexpr absl::Duration kRefusalLogInterval = absl::Seconds(10);

// Where its replies go.
struct Request {
  ShmSender sender;
  uint64_t call = 0;
};

}  // namespace

absl::StatusOr<std::unique_ptr<ShmListener>> ShmListener::Start(const std::string& name,
                                                                RequestHandler handler,
                                                                ConnectedProcesses* connected) {
  RECON_ASSIGN_OR_RETURN(OwnedFd listener, ListenForShm(name));
  OwnedFd wake(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  if (wake.get() < 0) return absl::UnavailableError("shared memory: eventfd failed");
  return std::unique_ptr<ShmListener>(
      new ShmListener(std::move(listener), std::move(wake), std::move(handler), connected));
}

ShmListener::ShmListener(OwnedFd listener, OwnedFd wake, RequestHandler handler,
                         ConnectedProcesses* connected)
    : listener_(std::move(listener)),
      wake_(std::move(wake)),
      handler_(std::move(handler)),
      connected_(connected) {
  thread_ = std::thread([this] {
    pthread_setname_np(pthread_self(), "shm-accept");
    Run();
  });
}

ShmListener::~ShmListener() {
  stopping_.store(true);
  WakeUp(wake_);
  thread_.join();
  connections_.clear();
}

void ShmListener::Run() {
  while (!stopping_.load()) {
    pollfd fds[2] = {{listener_.get(), POLLIN, 0}, {wake_.get(), POLLIN, 0}};
    poll(fds, 2, -1);
    if ((fds[1].revents & POLLIN) != 0) ForgetWakeUps(wake_);
    Reap();
    if ((fds[0].revents & POLLIN) != 0 && !stopping_.load()) Accept();
  }
}

void ShmListener::Accept() {
  absl::StatusOr<AcceptedShm> accepted = AcceptShm(listener_);
  if (!accepted.ok()) return SayRefused(accepted.status());
  Connection* connection = &connections_.emplace_back();
  connection->peer = std::move(accepted->peer);
  connection->sender = accepted->sender;
  if (connected_ != nullptr) connected_->Opened(connection->sender);
  open_.fetch_add(1);
  const absl::Status started = connection->peer->Start(
      [this, connection](const ByteChain& message) { OnRequest(connection, message); },
      [this, connection](const absl::Status& why) {
        LogDebug("shared memory: {}", why.message());
        open_.fetch_sub(1);
        if (connected_ != nullptr) connected_->Closed(connection->sender);
        connection->ended.store(true);
        WakeUp(wake_);
      });
  if (started.ok()) return;
  open_.fetch_sub(1);
  if (connected_ != nullptr) connected_->Closed(connection->sender);
  connections_.pop_back();  // Who has come sees that the connection has gone.
  SayRefused(started);
}

void ShmListener::SayRefused(const absl::Status& why) {
  if (Now() - last_refusal_ > kRefusalLogInterval) {
    LogWarn("a connection by shared memory was refused: {}", why.message());
  }
  last_refusal_ = Now();
  Sleep(kRefusalPause);  // Out of descriptors or threads, the next one fails as soon.
}

void ShmListener::OnRequest(Connection* connection, const ByteChain& message) {
  const auto unwrapped = Unwrap(message);
  if (!unwrapped.ok()) return connection->peer->Close();
  const auto from = MakePooled<const Request>(Request{connection->peer->sender(), unwrapped->first.call});
  handler_(
      unwrapped->second, [from] { from->sender.Send(WrapTaken(from->call)); },
      [from](const absl::StatusOr<ByteChain>& reply) { from->sender.Send(WrapReply(from->call, reply)); },
      {connection->sender, [from](size_t bytes) { return from->sender.Reserve(bytes); },
       /*over_request=*/false,
       /*untouched=*/true});
}

void ShmListener::Reap() {
  connections_.remove_if([](const Connection& connection) { return connection.ended.load(); });
}

}  // namespace recon
