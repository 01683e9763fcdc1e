#include "common/ucx/ucx_transport.h"

#include <optional>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "common/base/limits.h"
#include "common/base/log.h"
#include "common/base/mutex.h"
#include "common/base/status_macros.h"
#include "common/transport/envelope.h"
#include "common/transport/outgoing_requests.h"
#include "common/transport/pending_calls.h"
#include "common/ucx/ucx_address.h"
#include "common/ucx/ucx_engine.h"

namespace recon {
namespace {

class UcxTransport final : public Transport {
 public:
  UcxTransport(std::string address, std::string secret)
      : address_(std::move(address)), secret_(std::move(secret)) {}

  absl::Status Start() {
    UcxEngine::Callbacks callbacks;
    callbacks.on_message = [this](const UcxSender& from, const ByteChain& message) {
      OnMessage(from, message);
    };
    callbacks.on_closed = [this](uint64_t connection, const absl::Status& why) { OnClosed(connection, why); };
    RECON_ASSIGN_OR_RETURN(engine_, UcxEngine::Start(/*listen=*/"", std::move(callbacks)));
    return absl::OkStatus();
  }

  uint64_t Call(const ByteChain& request, Done done) override {
    if (request.size() > limits::kFrameBytesMax) {
      done(absl::ResourceExhaustedError("the request is larger than a frame may be"));
      return 0;  // No call has that number.
    }
    std::shared_ptr<OutgoingRequests> requests;
    uint64_t call;
    {
      MutexLock lock(&mu_);
      if (!server_) Connect();
      call = pending_.Add(server_->sender.connection(), std::move(done));
      requests = server_->requests;
    }
    requests->Add(call, WrapRequest(call, request));  // If it has ended, OnClosed() ends the call.
    return call;
  }

  void Abandon(uint64_t call, const absl::Status& why) override {
    std::shared_ptr<OutgoingRequests> requests;
    {
      MutexLock lock(&mu_);
      if (server_) requests = server_->requests;
    }
    if (requests != nullptr) requests->Drop(call);
    pending_.Finish(call, why);
  }

  void Disconnect() override {
    MutexLock lock(&mu_);
    if (server_) server_->sender.Close();
  }

 private:
  // A connection.
  struct Server {
    UcxSender sender;
    std::shared_ptr<OutgoingRequests> requests;
  };

  void Connect() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    const UcxSender sender = engine_->sender(engine_->Connect(address_));
    if (!secret_.empty()) sender.Send(WrapSecret(secret_));
    server_ = {sender, std::make_shared<OutgoingRequests>(
                           window_, [sender](uint64_t, const ByteChain& message) { sender.Send(message); })};
  }

  void OnMessage(const UcxSender& from, const ByteChain& message) {
    const auto unwrapped = Unwrap(message);
    if (!unwrapped.ok()) return from.Close();
    const auto& [envelope, body] = *unwrapped;
    std::shared_ptr<OutgoingRequests> requests;
    {
      MutexLock lock(&mu_);
      if (server_ && server_->sender.connection() == from.connection()) requests = server_->requests;
    }
    if (requests != nullptr) requests->Release(envelope.call);
    if (envelope.code != kTaken) pending_.Finish(envelope.call, ReplyOf(envelope, body));
  }

  void OnClosed(uint64_t connection, const absl::Status& why) {
    std::optional<Server> ended;
    {
      MutexLock lock(&mu_);  // No call is added to it afterwards.
      if (server_ && server_->sender.connection() == connection) ended.swap(server_);
    }
    if (ended) ended->requests->End();
    pending_.FailAll(connection, absl::UnavailableError(why.message()));
  }

  const std::string address_;
  const std::string secret_;
  // Its own: UCX notices late that a server stands still, and that must not hold up the others.
  const std::shared_ptr<SendWindow> window_ = std::make_shared<SendWindow>(/*servers=*/1, /*connections=*/1);
  PendingCalls pending_;

  Mutex mu_;
  std::optional<Server> server_ ABSL_GUARDED_BY(mu_);  // None while not connected.
  std::unique_ptr<UcxEngine> engine_;                  // Last: its thread uses the rest.
};

}  // namespace

bool HaveUcx() { return true; }

absl::StatusOr<std::unique_ptr<Transport>> ConnectOverUcx(const std::string& address,
                                                          const std::string& secret) {
  RECON_RETURN_IF_ERROR(CheckUcxAddress(address));
  auto transport = std::make_unique<UcxTransport>(address, secret);
  RECON_RETURN_IF_ERROR(transport->Start());
  return std::unique_ptr<Transport>(std::move(transport));
}

}  // namespace recon
