#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cstdint>
#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include "common/base/mutex.h"
#include "common/shm/shm_peer.h"
#include "tests/fuzz/require.h"
#include "tests/support/choices.h"

// One end of a connection through shared memory, while the other end writes anything into the rings. What the
// first sends, keeps and lets go is of the bytes, too. It must end with one reason, and without harm.
namespace recon {
namespace {

class Connection {
 public:
  Connection(const uint8_t* data, size_t size) : choices_(data, size) {
    int sockets[2];
    Require(socketpair(AF_UNIX, SOCK_STREAM, 0, sockets) == 0, "socketpair");
    std::unique_ptr<ShmRegion> region = *ShmRegion::Create();
    theirs_ = *ShmRegion::Attach(dup(region->fd()));
    socket_ = OwnedFd(sockets[1]);
    const int wake_me = eventfd(0, EFD_NONBLOCK);
    wake_ = OwnedFd(dup(wake_me));
    const auto side = choices_.Yes() ? ShmPeer::Side::kServer : ShmPeer::Side::kWorker;
    out_ = side == ShmPeer::Side::kWorker ? 0 : 1;
    peer_ = std::make_unique<ShmPeer>(side, std::move(region), OwnedFd(sockets[0]), OwnedFd(wake_me),
                                      OwnedFd(eventfd(0, EFD_NONBLOCK)));
    Require(peer_
                ->Start([this](const ByteChain& message) { Keep(message); },
                        [this](const absl::Status& why) { End(why); })
                .ok(),
            "a thread is started");
  }
  ~Connection() {
    peer_.reset();
    MutexLock lock(&mu_);
    Require(ends_ == 1, "a connection ends once");
  }

  void Run() {
    while (!choices_.empty()) Step();
  }

 private:
  void Step() {
    ShmRing& sent = theirs_->direction(1 - out_)->sent;
    ShmRing& released = theirs_->direction(out_)->released;
    switch (choices_.Of(9)) {
      case 0:
      case 1:
        sent.Put({choices_.Of(16), choices_.Of(64), 1 + choices_.Of(64), choices_.Of(4) == 0});
        return;
      case 2:
        sent.Put({choices_.Number32(), choices_.Number32(), choices_.Number32(), choices_.Number32()});
        return;
      case 3:
        released.Put({choices_.Yes() ? choices_.Of(kShmSlots) : choices_.Number32(), 0, 0, 0});
        return;
      case 4: {
        ShmRing& ring = choices_.Yes() ? sent : released;
        (choices_.Yes() ? ring.put : ring.taken)
            .store(choices_.Yes() ? choices_.Number32() : ring.put + choices_.Of(8));
        return;
      }
      case 5:
        WakeUp(wake_);
        return;
      case 6:
        (void)peer_->sender().Send(ByteChain::FromString(std::string(choices_.Of(100), 'm')));
        return;
      case 7:
        return SendReserved();
      default: {
        MutexLock lock(&mu_);
        if (!kept_.empty())
          kept_.erase(kept_.begin() + static_cast<int>(choices_.Of(static_cast<uint32_t>(kept_.size()))));
        return;
      }
    }
  }

  void SendReserved() {
    const std::shared_ptr<uint8_t[]> slot = peer_->sender().Reserve(64);
    if (slot == nullptr) return;
    std::memset(slot.get(), 'r', 64);
    ByteChain message;
    message.Append(slot.get(), 1 + choices_.Of(64), slot);
    (void)peer_->sender().Send(message);
  }

  void Keep(const ByteChain& message) {
    Require(message.size() <= kShmSlotBytes, "no message is larger than a slot");
    for (const ByteChain::Piece& piece : message.pieces()) {
      touched_ = touched_ + piece.data[0] + piece.data[piece.size - 1];
    }
    MutexLock lock(&mu_);
    kept_.push_back(message);
  }
  void End(const absl::Status& why) {
    MutexLock lock(&mu_);
    Require(!why.ok(), "a connection ends with a reason");
    ++ends_;
  }

  Choices choices_;
  std::unique_ptr<ShmRegion> theirs_;
  OwnedFd socket_, wake_;
  int out_ = 0;  // The direction that the peer sends in.
  volatile uint8_t touched_ = 0;
  Mutex mu_;
  std::vector<ByteChain> kept_ ABSL_GUARDED_BY(mu_);
  int ends_ ABSL_GUARDED_BY(mu_) = 0;
  std::unique_ptr<ShmPeer> peer_;
};

}  // namespace
}  // namespace recon

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  recon::Connection(data, size).Run();
  return 0;
}
