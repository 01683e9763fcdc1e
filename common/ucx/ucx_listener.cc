#include "common/ucx/ucx_listener.h"

#include <atomic>
#include <utility>

#include "common/base/log.h"
#include "common/base/status_macros.h"
#include "common/transport/envelope.h"
#include "common/ucx/ucx_address.h"
#include "common/ucx/ucx_engine.h"

namespace recon {
namespace {

class Listener final : public UcxListener {
 public:
  explicit Listener(RequestHandler handler) : handler_(std::move(handler)) {}

  absl::Status Start(const std::string& address) {
    UcxEngine::Callbacks callbacks;
    callbacks.on_accepted = [this](uint64_t) { open_.fetch_add(1); };
    callbacks.on_closed = [this](uint64_t, const absl::Status& why) {
      LogDebug("{}", why.message());
      open_.fetch_sub(1);
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
    const uint64_t call = unwrapped->first.call;
    handler_(
        unwrapped->second, [from, call] { from.Send(WrapTaken(call)); },
        [from, call](const absl::StatusOr<ByteChain>& reply) { from.Send(WrapReply(call, reply)); }, {});
  }

  const RequestHandler handler_;
  std::atomic<int> open_{0};
  std::unique_ptr<UcxEngine> engine_;  // Last: its thread uses the rest.
};

}  // namespace

absl::StatusOr<std::unique_ptr<UcxListener>> UcxListener::Start(const std::string& address,
                                                                RequestHandler handler) {
  RECON_RETURN_IF_ERROR(CheckUcxAddress(address));
  auto listener = std::make_unique<Listener>(std::move(handler));
  RECON_RETURN_IF_ERROR(listener->Start(address));
  return std::unique_ptr<UcxListener>(std::move(listener));
}

}  // namespace recon
