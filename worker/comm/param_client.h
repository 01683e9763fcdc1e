#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "common/base/mutex.h"
#include "common/codec/frame.h"
#include "common/transport/transport.h"

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

  // The way to each of the servers from now on; calls under way go on as they are.
  void Connect(std::vector<std::shared_ptr<Transport>> transports);
  // Memory for `bytes` of a shard's payload, from which its server's transport need not copy: its
  // Transport::RequestMemory(). Null if other memory serves as well.
  std::shared_ptr<uint8_t[]> PayloadMemory(uint32_t shard, size_t bytes);
  // Cuts all connections (Transport::Disconnect()).
  void Disconnect();

  // Sends the frames, each with shards of one server, all together and in this order, and waits for all
  // replies: element i of the result answers frame i. Payloads of replies refer to the network's buffers.
  // `deadline` is for all of them, `silence` for the next. Errors are the server's; Unavailable or
  // DeadlineExceeded when it cannot be reached. `on_reply` (may be empty) takes each reply as it comes, on
  // the transport's threads, one after another: it hands it on, and calls nothing of this client. The result
  // has its header alone then.
  std::vector<absl::StatusOr<Frame>> CallAll(FrameKind kind, std::vector<Frame> frames,
                                             absl::Duration deadline,
                                             const std::function<void(Frame)>& on_reply = nullptr,
                                             absl::Duration silence = absl::InfiniteDuration());

 private:
  using Transports = std::vector<std::shared_ptr<Transport>>;

  std::shared_ptr<Transport> TransportFor(const Transports& transports, uint32_t shard) const;

  const std::vector<uint32_t> server_of_shard_;

  Mutex mu_;
  Transports transports_ ABSL_GUARDED_BY(mu_);
};

}  // namespace recon
