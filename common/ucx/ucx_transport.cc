#include "common/ucx/ucx_transport.h"

#include <optional>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "common/base/limits.h"
#include "common/base/log.h"
#include "common/base/mutex.h"
#include "common/base/status_macros.h"
#include "common/transport/call_window.h"
#include "common/transport/envelope.h"
#include "common/transport/pending_calls.h"
#include "common/ucx/ucx_address.h"
#include "common/ucx/ucx_engine.h"

namespace recon {
namespace {

class UcxTransport final : public Transport {
 public:
  explicit UcxTransport(std::string address) : address_(std::move(address)) {}

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
    MutexLock lock(&mu_);
    if (!server_) {
      server_ = engine_->sender(engine_->Connect(address_));
    }
    const uint64_t call = pending_.Add(server_->connection(), std::move(done));
    window_.Add(call, WrapRequest(call, request));
    SendWhatMay();
    return call;
  }

  void Abandon(uint64_t call, const absl::Status& why) override {
    {
      MutexLock lock(&mu_);
      window_.Abandon(call);
    }
    pending_.Finish(call, why);
  }

  void Disconnect() override {
    MutexLock lock(&mu_);
    if (server_) server_->Close();
  }

 private:
  void SendWhatMay() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    while (const std::optional<ByteChain> message = window_.Next()) {
      server_->Send(*message);  // If it has ended, OnClosed() ends the call.
    }
  }

  void OnMessage(const UcxSender& from, const ByteChain& message) {
    const auto unwrapped = Unwrap(message);
    if (!unwrapped.ok()) return from.Close();
    const auto& [envelope, body] = *unwrapped;
    {
      MutexLock lock(&mu_);
      if (server_ && server_->connection() == from.connection()) {
        window_.Remove(envelope.call);
        SendWhatMay();
      }
    }
    if (envelope.code != kTaken) pending_.Finish(envelope.call, ReplyOf(envelope, body));
  }

  void OnClosed(uint64_t connection, const absl::Status& why) {
    CallWindow unsent;  // Destroyed without the lock.
    {
      MutexLock lock(&mu_);  // No call is added to it afterwards.
      if (server_ && server_->connection() == connection) {
        server_.reset();
        std::swap(unsent, window_);
      }
    }
    pending_.FailAll(connection, absl::UnavailableError(why.message()));
  }

  const std::string address_;
  PendingCalls pending_;

  Mutex mu_;
  std::optional<UcxSender> server_ ABSL_GUARDED_BY(mu_);  // None while not connected.
  CallWindow window_ ABSL_GUARDED_BY(mu_);                // Of the connection.
  std::unique_ptr<UcxEngine> engine_;                     // Last: its thread uses the rest.
};

}  // namespace

bool HaveUcx() { return true; }

absl::StatusOr<std::unique_ptr<Transport>> ConnectOverUcx(const std::string& address) {
  RECON_RETURN_IF_ERROR(CheckUcxAddress(address));
  auto transport = std::make_unique<UcxTransport>(address);
  RECON_RETURN_IF_ERROR(transport->Start());
  return std::unique_ptr<Transport>(std::move(transport));
}

}  // namespace recon
