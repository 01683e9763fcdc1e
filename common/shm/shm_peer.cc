#include "common/shm/shm_peer.h"

#include <poll.h>
#include <pthread.h>

#include <atomic>
#include <cstring>
#include <deque>
#include <string>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/strings/str_cat.h"
#include "common/base/copied_bytes.h"
#include "common/base/mutex.h"
#include "common/base/status_macros.h"

namespace recon {
namespace {

// Of a sender's slots, what its receiver may keep.
constexpr uint32_t kKeptMax = kShmSlots / 2;

}  // namespace

// What lives as long as the last message that was received.
class ShmLink {
 public:
  ShmLink(ShmPeer::Side side, std::unique_ptr<ShmRegion> shared, OwnedFd wake)
      : region(std::move(shared)),
        out(side == ShmPeer::Side::kWorker ? 0 : 1),
        sending(region->direction(out)),
        receiving(region->direction(1 - out)),
        wake_peer(std::move(wake)),
        lent(kShmSlots, false) {
    for (uint32_t slot = kShmSlots; slot-- > 0;) free_slots.push_back(slot);
  }

  // What has been sent is visible before the other end is asked whether it sleeps.
  void WakeIf(const std::atomic<uint32_t>& wants) {
    std::atomic_thread_fence(std::memory_order_seq_cst);
    if (wants.load(std::memory_order_relaxed) != 0) WakeUp(wake_peer);
  }

  // In place, unless so much is kept that the sender could run out of slots and wait for itself.
  static ByteChain MessageIn(const std::shared_ptr<ShmLink>& link, const ShmRing::Entry& entry) {
    const uint8_t* bytes = link->region->slot(1 - link->out, entry.slot);
    if (link->kept.load() >= kKeptMax) {
      CountCopy(CopyReason::kSharedMemory, entry.bytes);
      ByteChain copy = ByteChain::FromString(std::string(reinterpret_cast<const char*>(bytes), entry.bytes));
      link->GiveBack(entry.slot);
      return copy;
    }
    link->kept.fetch_add(1);
    ByteChain message;
    message.Append(bytes, entry.bytes,
                   std::shared_ptr<const void>(bytes, [link, slot = entry.slot](const void*) {
                     link->kept.fetch_sub(1);
                     link->GiveBack(slot);
                   }));
    return message;
  }

  void GiveBack(uint32_t slot) {
    {
      MutexLock lock(&receive_mu);
      receiving->released.Put({slot, 0});
    }
    WakeIf(receiving->sender_starves);
  }

  // Slots that the other end has given back.
  absl::Status Reclaim() ABSL_EXCLUSIVE_LOCKS_REQUIRED(send_mu) {
    ShmRing::Entry entry;
    while (true) {
      RECON_ASSIGN_OR_RETURN(const bool there, sending->released.Take(&entry));
      if (!there) return absl::OkStatus();
      if (!lent[entry.slot]) {
        return absl::DataLossError(
            absl::StrCat("shared memory: slot ", entry.slot, " was given back, but not lent"));
      }
      lent[entry.slot] = false;
      free_slots.push_back(entry.slot);  // Used next: it is in the cache.
    }
  }

  // False if there is none; then this end is woken when one comes back. A broken ring is found by the
  // receiving thread.
  bool TakeSlot(uint32_t* slot) ABSL_EXCLUSIVE_LOCKS_REQUIRED(send_mu) {
    Reclaim().IgnoreError();
    if (free_slots.empty()) {
      sending->sender_starves.store(1, std::memory_order_relaxed);
      std::atomic_thread_fence(std::memory_order_seq_cst);  // As in WakeIf().
      Reclaim().IgnoreError();
      if (free_slots.empty()) return false;
    }
    sending->sender_starves.store(0, std::memory_order_relaxed);
    *slot = free_slots.back();
    free_slots.pop_back();
    lent[*slot] = true;
    return true;
  }

  // Whoever has taken the slot.
  void SendIn(uint32_t slot, const ByteChain& message) {
    uint8_t* to = region->slot(out, slot);
    for (const ByteChain::Piece& piece : message.pieces()) {
      std::memcpy(to, piece.data, piece.size);
      to += piece.size;
    }
    CountCopy(CopyReason::kSharedMemory, message.size());
    {
      MutexLock lock(&send_mu);
      sending->sent.Put({slot, static_cast<uint32_t>(message.size())});
    }
    WakeIf(sending->receiver_sleeps);
  }

  const std::unique_ptr<ShmRegion> region;
  const int out;
  ShmDirection* const sending;
  ShmDirection* const receiving;
  const OwnedFd wake_peer;
  std::atomic<bool> closed{false};
  std::atomic<uint32_t> kept{0};  // Messages that are used in place.

  Mutex send_mu;
  std::vector<uint32_t> free_slots ABSL_GUARDED_BY(send_mu);
  std::vector<bool> lent ABSL_GUARDED_BY(send_mu);
  std::deque<ByteChain> backlog ABSL_GUARDED_BY(send_mu);  // No slot was free.

  Mutex receive_mu;  // Orders those who give slots back.
};

ShmPeer::ShmPeer(Side side, std::unique_ptr<ShmRegion> region, OwnedFd socket, OwnedFd wake_me,
                 OwnedFd wake_peer)
    : link_(std::make_shared<ShmLink>(side, std::move(region), std::move(wake_peer))),
      socket_(std::move(socket)),
      wake_me_(std::move(wake_me)) {}

ShmPeer::~ShmPeer() {
  Close();
  if (thread_.joinable()) thread_.join();
}

void ShmPeer::Start(OnMessage on_message, OnClosed on_closed) {
  thread_ = std::thread([this, on_message = std::move(on_message), on_closed = std::move(on_closed)] {
    pthread_setname_np(pthread_self(), "shm");
    Run(on_message, on_closed);
  });
}

bool ShmSender::Send(const ByteChain& message) const {
  if (message.size() > kShmSlotBytes) return false;
  uint32_t slot = 0;
  {
    MutexLock lock(&link_->send_mu);
    if (link_->closed.load()) return false;
    if (!link_->backlog.empty() || !link_->TakeSlot(&slot)) {
      link_->backlog.push_back(message);
      return true;
    }
  }
  link_->SendIn(slot, message);
  return true;
}

void ShmPeer::Close() {
  link_->closed.store(true);
  WakeUp(wake_me_);
}

void ShmPeer::Run(const OnMessage& on_message, const OnClosed& on_closed) {
  absl::Status status;
  while (status.ok() && !link_->closed.load()) {
    status = ReceiveAll(on_message);
    if (status.ok() && !Sleep()) {
      ReceiveAll(on_message).IgnoreError();  // Its last words.
      status = absl::UnavailableError("the other process has gone");
    }
  }
  {
    MutexLock lock(&link_->send_mu);
    link_->closed.store(true);
    link_->backlog.clear();
  }
  on_closed(status.ok() ? absl::UnavailableError("the connection was closed") : status);
}

absl::Status ShmPeer::ReceiveAll(const OnMessage& on_message) {
  ShmRing::Entry entry;
  while (!link_->closed.load()) {
    RECON_ASSIGN_OR_RETURN(const bool there, link_->receiving->sent.Take(&entry));
    if (!there) break;
    on_message(ShmLink::MessageIn(link_, entry));
  }
  while (true) {
    uint32_t slot = 0;
    ByteChain message;
    {
      MutexLock lock(&link_->send_mu);
      RECON_RETURN_IF_ERROR(link_->Reclaim());
      if (link_->backlog.empty() || !link_->TakeSlot(&slot)) return absl::OkStatus();
      message = std::move(link_->backlog.front());
      link_->backlog.pop_front();
    }
    link_->SendIn(slot, message);
  }
}

// Until there is something to do; false if the other end has gone.
bool ShmPeer::Sleep() {
  link_->receiving->receiver_sleeps.store(1, std::memory_order_seq_cst);
  pollfd fds[2] = {{wake_me_.get(), POLLIN, 0}, {socket_.get(), POLLIN | POLLRDHUP, 0}};
  const bool wait = link_->receiving->sent.Empty() && !link_->closed.load();
  poll(fds, 2, wait ? -1 : 0);
  link_->receiving->receiver_sleeps.store(0, std::memory_order_seq_cst);
  if ((fds[0].revents & POLLIN) != 0) ForgetWakeUps(wake_me_);
  // Nothing is said on the socket once the connection stands.
  return fds[1].revents == 0;
}

}  // namespace recon
