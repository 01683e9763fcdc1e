#pragma once

#include <cstddef>
#include <memory>
#include <optional>

#include "absl/base/thread_annotations.h"
#include "absl/status/statusor.h"
#include "common/base/byte_chain.h"
#include "common/base/mutex.h"
#include "common/base/pool_allocator.h"
#include "common/rpc/open_call.h"
#include "common/rpc/param_service.h"
#include "grpcpp/support/byte_buffer.h"
#include "grpcpp/support/server_callback.h"

namespace recon {

// One worker's stream. It reads no further while more than limits::kStreamBytesInFlightMax of what it has
// read is neither taken nor answered, or of its replies is not written yet; the network's flow control tells
// the worker. A reply that waits for other workers does not count once its request is taken.
//
// Threads: reactions on gRPC's threads, callbacks of requests on any; they may come after the stream's end.
// Lifetime: gRPC and the callbacks of its requests keep it.
class ExchangeStream final : public grpc::ServerBidiReactor<grpc::ByteBuffer, grpc::ByteBuffer>,
                             public std::enable_shared_from_this<ExchangeStream> {
 public:
  // `sender`: the process that its other end has shown to be; 0: none. `connection`: what the stream is over;
  // null: unknown.
  ExchangeStream(ParamService* service, Incarnation sender, std::shared_ptr<Connection> connection)
      : service_(service), sender_(sender), connection_(std::move(connection)), call_(connection_) {}

  Incarnation sender() const { return sender_; }
  // Its connection stays, if the sender is one of the job.
  void NoteIfMember();

  // A bad status is the answer, and nothing is read.
  void Start(const absl::Status& admitted);
  // Ends it when what is being written is written.
  void Close(const absl::Status& status);

  void OnReadDone(bool ok) override;
  void OnWriteDone(bool ok) override;
  void OnCancel() override;
  void OnDone() override;

 private:
  void ReadOn() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void FinishIfIdle() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // A request that is not answered yet.
  struct Request {
    std::shared_ptr<ExchangeStream> stream;
    uint64_t call = 0;
    size_t charge = 0;  // 0 once it is taken.
    bool answered = false;
  };
  void Taken(Request* request);
  void Reply(Request* request, const absl::StatusOr<ByteChain>& reply);
  // Takes the message over.
  void Send(grpc::ByteBuffer* message) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);

  ParamService* const service_;  // Until OnDone().
  const Incarnation sender_;
  const std::shared_ptr<Connection> connection_;
  const OpenCall call_;
  std::shared_ptr<ExchangeStream> self_;
  grpc::ByteBuffer incoming_;

  Mutex mu_ ABSL_ACQUIRED_AFTER(service_->mu_);
  PooledDeque<grpc::ByteBuffer> outgoing_ ABSL_GUARDED_BY(mu_);  // The first is being written.
  size_t bytes_held_ ABSL_GUARDED_BY(mu_) = 0;                   // Read and not taken, or not written.
  int requests_ ABSL_GUARDED_BY(mu_) = 0;                        // Not answered.
  bool reading_ ABSL_GUARDED_BY(mu_) = false;
  bool no_more_reads_ ABSL_GUARDED_BY(mu_) = false;
  bool finished_ ABSL_GUARDED_BY(mu_) = false;
  std::optional<absl::Status> closing_ ABSL_GUARDED_BY(mu_);
};

}  // namespace recon
