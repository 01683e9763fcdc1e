#pragma once

#include <memory>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/time/time.h"
#include "common/base/limits.h"
#include "common/base/mutex.h"
#include "common/shm/shm_peer.h"
#include "common/transport/pending_calls.h"
#include "common/transport/send_window.h"
#include "common/transport/transport.h"

namespace recon {

// Frames through memory shared with a server on this machine, as long as one listens under the name; over
// `otherwise` when none does (it has moved, or a firewall of namespaces is between).
class ShmTransport final : public Transport {
 public:
  // `secret`: WorkerSecret's bytes, which the server is shown; or nothing.
  ShmTransport(std::string name, std::unique_ptr<Transport> otherwise, std::string secret = "");
  ~ShmTransport() override;

  // Whether the memory is shared now; tries to connect.
  bool Connected();

  uint64_t Call(const ByteChain& request, Done done) override;
  void Abandon(uint64_t call, const absl::Status& why) override;
  void Disconnect() override;
  std::shared_ptr<uint8_t[]> RequestMemory(size_t bytes) override;
  bool SharesMemory() override { return Connected(); }

 private:
  struct Connection;

  bool ConnectedLocked() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void OnMessage(Connection* connection, const ByteChain& message);
  void OnClosed(Connection* connection, const absl::Status& why);

  const std::string name_;
  const std::string secret_;
  // Its own: nothing is to be shared fairly with other servers, and one that stands still holds up no other.
  const std::shared_ptr<SendWindow> window_ = std::make_shared<SendWindow>(/*servers=*/1, /*connections=*/1);
  const std::unique_ptr<Transport> otherwise_;
  PendingCalls pending_;

  Mutex mu_;
  std::unique_ptr<Connection> connection_ ABSL_GUARDED_BY(mu_);
  // Ended; their threads may still be at their end.
  std::vector<std::unique_ptr<Connection>> ended_ ABSL_GUARDED_BY(mu_);
  uint64_t connections_ ABSL_GUARDED_BY(mu_) = 0;
  bool over_network_ ABSL_GUARDED_BY(mu_) = false;
  absl::Time next_try_ ABSL_GUARDED_BY(mu_) = absl::InfinitePast();
};

}  // namespace recon
