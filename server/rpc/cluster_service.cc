#include "server/rpc/cluster_service.h"

#include <deque>
#include <optional>
#include <utility>

#include "common/base/check.h"
#include "common/base/limits.h"
#include "common/rpc/open_call.h"
#include "common/rpc/sender.h"
#include "common/rpc/status_codes.h"

namespace recon {

// Reactions on gRPC's threads. Lifetime: gRPC and those who hear its reports keep it.
class ServerStream final : public grpc::ServerBidiReactor<ServerReport, ServerCommand>,
                           public ServerLink,
                           public std::enable_shared_from_this<ServerStream> {
 public:
  ServerStream(ClusterService* service, std::shared_ptr<Connection> connection)
      : service_(service), connection_(std::move(connection)), call_(connection_) {}

  void Start() {
    self_ = shared_from_this();
    StartRead(&report_);
  }

  // Instead of Start().
  void Refuse(const absl::Status& why) {
    self_ = shared_from_this();
    Close(why);
  }

  void Send(const ServerCommand& command) override {
    MutexLock lock(&mu_);
    if (finished_ || closing_) return;
    if (outgoing_.size() >= limits::kServerCommandsMax) {
      outgoing_.resize(1);  // What is being written.
      closing_ = absl::UnavailableError("it does not read what it is told");
      return;
    }
    outgoing_.push_back(command);
    if (outgoing_.size() == 1) StartWrite(&outgoing_.front());
  }

  void Close(const absl::Status& why) override {
    MutexLock lock(&mu_);
    if (closing_) return;
    closing_ = why;
    FinishIfIdle();
  }

  void OnReadDone(bool ok) override {
    if (!ok) return Close(absl::OkStatus());
    if (connection_ != nullptr) connection_->NoteUnderstood();
    // Who is sent away has nothing to report after its first word.
    if (connection_ != nullptr && std::exchange(has_reported_, true)) connection_->NoteMember();
    service_->reports_->OnReport(shared_from_this(), report_);
    report_.Clear();
    MutexLock lock(&mu_);
    if (!closing_) StartRead(&report_);
  }

  void OnWriteDone(bool ok) override {
    MutexLock lock(&mu_);
    RECON_CHECK(!outgoing_.empty());
    outgoing_.pop_front();
    if (!ok) {
      outgoing_.clear();
      if (!closing_) closing_ = absl::UnavailableError("it cannot be written to");
    } else if (!outgoing_.empty()) {
      StartWrite(&outgoing_.front());
    }
    FinishIfIdle();
  }

  void OnCancel() override { Close(absl::CancelledError("it has gone")); }

  void OnDone() override {
    service_->reports_->OnClosed(self_);
    service_->Forget(this);
    self_.reset();
  }

 private:
  void FinishIfIdle() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    if (finished_ || !closing_ || !outgoing_.empty()) return;
    finished_ = true;
    Finish(ToGrpc(*closing_));
  }

  ClusterService* const service_;  // Until OnDone().
  std::shared_ptr<ServerStream> self_;
  const std::shared_ptr<Connection> connection_;  // What it is over; null: unknown.
  const OpenCall call_;
  bool has_reported_ = false;  // Of its reactions.
  ServerReport report_;

  Mutex mu_ ABSL_ACQUIRED_AFTER(service_->mu_);
  std::deque<ServerCommand> outgoing_ ABSL_GUARDED_BY(mu_);  // The first is being written.
  std::optional<absl::Status> closing_ ABSL_GUARDED_BY(mu_);
  bool finished_ ABSL_GUARDED_BY(mu_) = false;
};

grpc::ServerBidiReactor<ServerReport, ServerCommand>* ClusterService::Serve(
    grpc::CallbackServerContext* context) {
  const absl::Status allowed = access_->Check(context, Role::kServer, "Serve");
  const auto stream = std::make_shared<ServerStream>(this, access_->ConnectionOf(PeerOf(*context)));
  {
    MutexLock lock(&mu_);
    const bool is_new = streams_.insert(stream.get()).second;
    RECON_CHECK(is_new);
  }
  if (allowed.ok()) {
    access_->Note(*context, "Serve", "", absl::OkStatus());
    stream->Start();
  } else {
    stream->Refuse(allowed);
  }
  return stream.get();
}

void ClusterService::Close(const absl::Status& why) {
  MutexLock lock(&mu_);
  // None of them is forgotten, and so destroyed, meanwhile.
  for (ServerStream* stream : streams_) stream->Close(why);
}

void ClusterService::Forget(ServerStream* stream) {
  MutexLock lock(&mu_);
  const size_t erased = streams_.erase(stream);
  RECON_CHECK_EQ(erased, 1, "a stream ends twice");
}

}  // namespace recon
