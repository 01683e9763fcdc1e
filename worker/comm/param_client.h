#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "common/base/mutex.h"
#include "common/base/pool_allocator.h"
#include "common/codec/frame.h"
#include "common/transport/transport.h"
#include "worker/comm/server_watch.h"

namespace recon {

// Calls of the data plane with frames, to the servers that have their shards. Thread-safe.
class ParamClient {
 public:
  // Element i of `server_of_shard` is shard i's server; Connect() comes before calls.
  explicit ParamClient(std::vector<uint32_t> server_of_shard)
      : server_of_shard_(std::move(server_of_shard)) {}
  // One server, whose transport must outlive the client.
  explicit ParamClient(Transport* transport);

  const std::vector<uint32_t>& server_of_shard() const { return server_of_shard_; }

  // The way to each of the servers from now on; calls under way go on as they are. `addresses`: as
  // ServerWatch has them.
  void Connect(std::vector<std::shared_ptr<Transport>> transports,
               const std::vector<std::string>& addresses = {});
  // Servers that take no frames, as ServerWatch says it.
  ServerWatch::Missing Away(absl::Time now) const { return watch_->Away(now); }
  // Memory for `bytes` of a shard's payload, from which its server's transport need not copy: its
  // Transport::RequestMemory(). Null if other memory serves as well.
  std::shared_ptr<uint8_t[]> PayloadMemory(uint32_t shard, size_t bytes);
  // Cuts all connections (Transport::Disconnect()).
  void Disconnect();

  // Frames that go out one after the other, and whose replies are waited for together.
  class Exchange;

  // An exchange of frames that are all there: sends them in this order, and waits for all replies.
  std::vector<absl::StatusOr<Frame>> CallAll(FrameKind kind, std::vector<Frame> frames,
                                             absl::Duration deadline,
                                             const std::function<void(Frame)>& on_reply = nullptr,
                                             absl::Duration silence = absl::InfiniteDuration());

 private:
  using Transports = std::vector<std::shared_ptr<Transport>>;

  uint32_t ServerOf(uint32_t shard) const {
    return shard < server_of_shard_.size() ? server_of_shard_[shard] : 0;
  }
  std::shared_ptr<Transport> TransportFor(const Transports& transports, uint32_t shard) const;

  const std::vector<uint32_t> server_of_shard_;
  // Shared with the callbacks of calls, which may come late.
  const std::shared_ptr<ServerWatch> watch_ = std::make_shared<ServerWatch>();

  Mutex mu_;
  Transports transports_ ABSL_GUARDED_BY(mu_);
};

// Threads: one, but for `on_reply`.
class ParamClient::Exchange {
 public:
  // `on_reply` (may be empty) takes each reply as it comes, on the transport's threads, one after another: it
  // hands it on, and calls nothing of this client. What is returned has its header alone then. Both must
  // outlive the exchange, which goes by the connections that there are now.
  Exchange(ParamClient* client, FrameKind kind, const std::function<void(Frame)>& on_reply);
  // Gives up what is not answered.
  ~Exchange();
  Exchange(const Exchange&) = delete;
  Exchange& operator=(const Exchange&) = delete;

  // Each frame has shards of one server. It waits for nothing.
  void Send(std::vector<Frame> frames);
  // Waits for all replies: element i of the result answers the frame that was sent as number i. Payloads of
  // replies refer to the network's buffers. `deadline` is for all of them, `silence` for the next. Errors are
  // the server's; Unavailable or DeadlineExceeded when it cannot be reached. The last of all calls.
  std::vector<absl::StatusOr<Frame>> Await(absl::Duration deadline, absl::Duration silence);

 private:
  struct Window;
  struct Call {
    Transport* transport;
    uint64_t number;
  };

  void Abandon(const absl::Status& why);

  const ParamClient* const client_;
  const FrameKind kind_;
  const std::function<void(Frame)>* const on_reply_;
  const Transports transports_;
  const std::shared_ptr<Window> window_;
  PooledVector<Call> calls_;
  bool awaited_ = false;
};

}  // namespace recon
