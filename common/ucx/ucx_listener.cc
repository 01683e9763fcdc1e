#include "common/ucx/ucx_listener.h"

#include <atomic>
#include <utility>

#include "absl/container/flat_hash_map.h"
#include "common/base/log.h"
#include "common/base/status_macros.h"
#include "common/transport/envelope.h"
#include "common/transport/worker_secret.h"
#include "common/ucx/ucx_address.h"
#include "common/ucx/ucx_engine.h"

namespace recon {
namespace {

class Listener final : public UcxListener {
 public:
  Listener(RequestHandler handler, ConnectedProcesses* connected)
      : handler_(std::move(handler)), connected_(connected) {}

  absl::Status Start(const std::string& address) {
    UcxEngine::Callbacks callbacks;
    callbacks.on_accepted = [this](uint64_t) { open_.fetch_add(1); };
    callbacks.on_closed = [this](uint64_t connection, const absl::Status& why) {
      LogDebug("{}", why.message());
      open_.fetch_sub(1);
      const auto sender = senders_.find(connection);
      if (sender == senders_.end()) return;
      if (connected_ != nullptr) connected_->Closed(sender->second);
      senders_.erase(sender);
    };
    callbacks.on_message = [this](const UcxSender& from, const ByteChain& message) {
      OnRequest(from, message);
    };
    RECON_ASSIGN_OR_RETURN(engine_, UcxEngine::Start(address, std::move(callbacks)));
    return absl::OkStatus();
  }

  int port() const override { return engine_->port(); }
  bool any_host() const override { return engine_->any_host(); }
  int connections() const override { return open_.load(); }

 private:
  void OnRequest(const UcxSender& from, const ByteChain& message) {
    const auto unwrapped = Unwrap(message);
    if (!unwrapped.ok()) return from.Close();
    if (unwrapped->first.code == kSecret) return TakeSecret(from, unwrapped->second);
    const uint64_t call = unwrapped->first.call;
    const auto sender = senders_.find(from.connection());
    // Its secret is the first thing that a worker sends; without it, it is to connect anew.
    if (sender == senders_.end() && connected_ != nullptr) return from.Close();
    handler_(
        unwrapped->second, [from, call] { from.Send(WrapTaken(call)); },
        [from, call](const absl::StatusOr<ByteChain>& reply) { from.Send(WrapReply(call, reply)); },
        {sender == senders_.end() ? Incarnation() : sender->second, nullptr, false, false});
  }

  // The first message of a connection; another one ends it.
  void TakeSecret(const UcxSender& from, const ByteChain& message) {
    if (message.size() != WorkerSecret::kBytes) return from.Close();
    const auto secret = WorkerSecret::FromBytes(message.ToString());
    if (!secret.ok() || !senders_.emplace(from.connection(), secret->incarnation()).second) {
      return from.Close();
    }
    if (connected_ != nullptr) connected_->Opened(secret->incarnation());
  }

  const RequestHandler handler_;
  ConnectedProcesses* const connected_;
  absl::flat_hash_map<uint64_t, Incarnation> senders_;  // By connection. UCX's thread.
  std::atomic<int> open_{0};
  std::unique_ptr<UcxEngine> engine_;  // Last: its thread uses the rest.
};

}  // namespace

absl::StatusOr<std::unique_ptr<UcxListener>> UcxListener::Start(const std::string& address,
                                                                RequestHandler handler,
                                                                ConnectedProcesses* connected) {
  RECON_RETURN_IF_ERROR(CheckUcxAddress(address));
  auto listener = std::make_unique<Listener>(std::move(handler), connected);
  RECON_RETURN_IF_ERROR(listener->Start(address));
  return std::unique_ptr<UcxListener>(std::move(listener));
}

}  // namespace recon
