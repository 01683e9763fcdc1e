#pragma once

#include <cstddef>
#include <memory>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/time/time.h"
#include "common/base/mutex.h"
#include "common/rpc/caller.h"
#include "common/rpc/credentials.h"
#include "common/transport/outgoing_requests.h"
#include "common/transport/pending_calls.h"
#include "common/transport/send_window.h"
#include "common/transport/transport.h"
#include "grpcpp/channel.h"
#include "grpcpp/generic/generic_stub.h"

namespace recon {

// Frames over streams of the Param service, one a channel: raw messages of up to about 1 MiB, the payloads
// sent from where they are. A request takes the stream that has the fewest under way when the window admits
// it: bound to one before, it would wait behind others there while another stream has nothing to do.
class GrpcTransport final : public Transport {
 public:
  // At least one channel. `window` is shared with the worker's transports to other servers. The server is
  // shown `caller` at the beginning of each stream.
  GrpcTransport(const std::vector<std::shared_ptr<grpc::Channel>>& channels,
                std::shared_ptr<SendWindow> window, Caller caller = {});
  ~GrpcTransport() override;

  uint64_t Call(const ByteChain& request, Done done) override;
  void Abandon(uint64_t call, const absl::Status& why) override;
  // Calls that wait for the window end, too.
  void Disconnect() override;

 private:
  class Stream;
  struct Presence;

  // A channel and its newest stream; others are ending.
  struct Line {
    grpc::TemplatedGenericStub<grpc::ByteBuffer, grpc::ByteBuffer> stub;
    std::shared_ptr<Stream> stream;
    absl::Time broken_until = absl::InfinitePast();
  };

  // What the window has admitted.
  void Send(uint64_t call, const ByteChain& message);
  // Reserved for one call; the first of those that are alike, so that no more of them come to be connected
  // than are needed. Null when the transport goes.
  std::shared_ptr<Stream> LeastBusyStream();
  // A stream takes no more calls. True if it was the last one that did.
  bool Forget(uint64_t connection);
  // gRPC's thread: a stream has ended. If no other one takes calls, what waits ends with it; what comes after
  // Disconnect() is not what waited.
  void Ended(uint64_t connection, const absl::Status& why);
  void FailWaiting(const absl::Status& why);

  const Caller caller_;
  PendingCalls pending_;  // Those that have no stream yet are of connection 0.
  std::shared_ptr<Presence> presence_;
  std::shared_ptr<OutgoingRequests> requests_;

  Mutex mu_;
  std::vector<Line> lines_ ABSL_GUARDED_BY(mu_);
  uint64_t connections_ ABSL_GUARDED_BY(mu_) = 0;
  bool closing_ ABSL_GUARDED_BY(mu_) = false;

  // Taken when a stream is destroyed, whatever other lock is held.
  Mutex presence_mu_ ABSL_ACQUIRED_AFTER(mu_);
  bool present_ ABSL_GUARDED_BY(presence_mu_) = true;
};

// So many connections to a recon-server; `window` and `caller` as GrpcTransport's. Errors are ConnectTo()'s.
absl::StatusOr<std::unique_ptr<Transport>> ConnectForFrames(const std::string& address, const TlsFlags& tls,
                                                            int connections,
                                                            std::shared_ptr<SendWindow> window,
                                                            Caller caller = {});

}  // namespace recon
