#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <thread>
#include <utility>

#include "absl/status/status.h"
#include "common/base/byte_chain.h"
#include "common/base/owned_fd.h"
#include "common/shm/shm_region.h"

namespace recon {

class ShmLink;

// Sends over a connection, and may outlive it. Thread-safe; copies are the same.
class ShmSender {
 public:
  explicit ShmSender(std::shared_ptr<ShmLink> link) : link_(std::move(link)) {}

  // Copies the message into a slot, now or when one is free; but not what lies in Reserve()'s memory: that is
  // sent from there, in as many messages as refer to it, unless a message is in very many pieces. False if
  // the connection is closed, or the message larger than kShmSlotBytes.
  bool Send(const ByteChain& message) const;

  // A slot, for what is to be sent, as long as the pointer, and pinned for the process' device if it has one
  // (host_pinning.h). What a message has must not change once it has been sent. Null if the connection is
  // closed, all such slots are in use, or none is as large.
  std::shared_ptr<uint8_t[]> Reserve(size_t bytes) const;

 private:
  std::shared_ptr<ShmLink> link_;
};

// One end of a connection through shared memory.
//
// Threads: Close() on any thread. A thread of its own receives: it calls `on_message`, whose bytes
// lie in the shared memory until the last reference to them goes, anywhere, even after this object; and, once
// and last, `on_closed` with the reason.
// Waking: by eventfd, only if the other end said that it sleeps. Nobody spins.
class ShmPeer {
 public:
  enum class Side { kWorker, kServer };
  using OnMessage = std::function<void(const ByteChain& message)>;
  using OnClosed = std::function<void(const absl::Status& why)>;

  // `socket` connects the two ends: when it hangs up, the other one has gone. `wake_me` and `wake_peer` are
  // eventfds.
  ShmPeer(Side side, std::unique_ptr<ShmRegion> region, OwnedFd socket, OwnedFd wake_me, OwnedFd wake_peer);
  // Closes, and waits for the thread. Not on the thread itself.
  ~ShmPeer();
  ShmPeer(const ShmPeer&) = delete;
  ShmPeer& operator=(const ShmPeer&) = delete;

  // ResourceExhausted if no thread can be started: nothing is received then, and nobody called.
  absl::Status Start(OnMessage on_message, OnClosed on_closed);
  ShmSender sender() const { return ShmSender(link_); }
  void Close();

 private:
  void Run(const OnMessage& on_message, const OnClosed& on_closed);
  absl::Status ReceiveAll(const OnMessage& on_message);
  bool Sleep();

  const std::shared_ptr<ShmLink> link_;  // Kept by messages that are still in use.
  const OwnedFd socket_;
  ByteChain incoming_;  // The thread's: a message that is not all there.
  std::thread thread_;
};

}  // namespace recon
