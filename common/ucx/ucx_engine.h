#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "common/base/byte_chain.h"

namespace recon {

class UcxCore;

// Sends over a connection of a UcxEngine, and may outlive both. Thread-safe; copies are the same.
class UcxSender {
 public:
  UcxSender(std::shared_ptr<UcxCore> core, uint64_t connection)
      : core_(std::move(core)), connection_(connection) {}

  // Never waits. Nothing happens if the connection has ended.
  void Send(const ByteChain& message) const;
  void Close() const;
  uint64_t connection() const { return connection_; }

 private:
  std::shared_ptr<UcxCore> core_;
  uint64_t connection_;
};

// Messages over UCX (https://openucx.org): InfiniBand and RoCE where there are any, else TCP and memory
// shared with processes of this machine; UCX chooses, and its own variables (UCX_TLS, UCX_NET_DEVICES) have a
// say. A large message is gathered in a buffer and fetched to one of the receiver's, both registered once; a
// small one is copied out of UCX's memory. What is to be sent waits where it lies while 8 MiB are under way;
// a peer that does not keep to that is cut off.
//
// Threads: Connect() and senders on any. A thread of its own drives UCX and calls back; it sleeps while there
// is nothing to do. The bytes of a message stay until the last reference to them goes, anywhere, even after
// this object.
// Shutdown: the destructor ends all connections, and calls back for each.
class UcxEngine {
 public:
  struct Callbacks {
    std::function<void(const UcxSender& from, const ByteChain& message)> on_message;
    // Once for each connection, the last of it.
    std::function<void(uint64_t connection, const absl::Status& why)> on_closed;
    // Somebody has connected.
    std::function<void(uint64_t connection)> on_accepted;
  };

  // `listen`: HOST:PORT, or empty if nobody connects here. FailedPrecondition if UCX cannot be used, or the
  // address not be listened on.
  static absl::StatusOr<std::unique_ptr<UcxEngine>> Start(const std::string& listen, Callbacks callbacks);
  ~UcxEngine();
  UcxEngine(const UcxEngine&) = delete;
  UcxEngine& operator=(const UcxEngine&) = delete;

  // The port that is listened on, and whether on all addresses of the machine.
  int port() const;
  bool any_host() const;
  // A new connection, which may turn out to be none: then it is closed.
  // Its name is looked up anew, by UCX's thread.
  uint64_t Connect(const std::string& address);
  UcxSender sender(uint64_t connection) const { return UcxSender(core_, connection); }

 private:
  explicit UcxEngine(std::shared_ptr<UcxCore> core) : core_(std::move(core)) {}

  const std::shared_ptr<UcxCore> core_;  // Kept by senders.
};

}  // namespace recon
