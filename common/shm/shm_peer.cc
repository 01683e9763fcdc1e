#include "common/shm/shm_peer.h"

#include <poll.h>
#include <pthread.h>

#include <atomic>
#include <cstring>
#include <deque>
#include <optional>
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
// Before what is written in advance: envelope, header and table of a frame of any usual size.
constexpr size_t kHeadBytesMax = size_t{64} << 10;

// Who has a slot that is not free.
constexpr uint8_t kHere = 1;   // Reserve()'s memory is in use.
constexpr uint8_t kThere = 2;  // It is being sent, or the other end has it.

}  // namespace

// What lives as long as the last message that was received, or is written in advance.
class ShmLink {
 public:
  ShmLink(ShmPeer::Side side, std::unique_ptr<ShmRegion> shared, OwnedFd me, OwnedFd peer)
      : region(std::move(shared)),
        out(side == ShmPeer::Side::kWorker ? 0 : 1),
        sending(region->direction(out)),
        receiving(region->direction(1 - out)),
        wake_me(std::move(me)),
        wake_peer(std::move(peer)),
        holders(kShmSlots, 0) {
    for (uint32_t slot = kShmSlots; slot-- > 0;) free_slots.push_back(slot);
  }

  // What has been sent is visible before the other end is asked whether it sleeps.
  void WakeIf(const std::atomic<uint32_t>& wants) {
    std::atomic_thread_fence(std::memory_order_seq_cst);
    if (wants.load(std::memory_order_relaxed) != 0) WakeUp(wake_peer);
  }

  // In place, unless so much is kept that the sender could run out of slots and wait for itself.
  static ByteChain MessageIn(const std::shared_ptr<ShmLink>& link, const ShmRing::Entry& entry) {
    const uint8_t* bytes = link->region->slot(1 - link->out, entry.slot) + entry.offset;
    if (link->kept.load() >= kKeptMax) {
      CountCopy(CopyReason::kSharedMemory, entry.bytes);
      ByteChain copy = ByteChain::FromString(std::string(reinterpret_cast<const char*>(bytes), entry.bytes));
      link->GiveBack(entry.slot);
      return copy;
    }
    link->kept.fetch_add(1);
    ByteChain message;
    message.Append(bytes, entry.bytes,
                   std::shared_ptr<const void>(bytes, [link, slot = entry.slot](const void*) mutable {
                     const std::shared_ptr<ShmLink> held = std::move(link);  // Not as long as weak pointers.
                     held->kept.fetch_sub(1);
                     held->GiveBack(slot);
                   }));
    return message;
  }

  void GiveBack(uint32_t slot) {
    {
      MutexLock lock(&receive_mu);
      receiving->released.Put({slot, 0, 0});
    }
    WakeIf(receiving->sender_starves);
  }

  // Slots that the other end has given back. Once that made no sense it fails for ever.
  absl::Status Reclaim() ABSL_EXCLUSIVE_LOCKS_REQUIRED(send_mu) {
    ShmRing::Entry entry;
    while (broken.ok()) {
      const absl::StatusOr<bool> there = sending->released.Take(&entry);
      if (!there.ok()) {
        broken = there.status();
      } else if (!*there) {
        break;
      } else if ((holders[entry.slot] & kThere) == 0) {
        broken = absl::DataLossError(
            absl::StrCat("shared memory: slot ", entry.slot, " was given back, but not lent"));
      } else {
        Drop(entry.slot, kThere);
      }
    }
    return broken;
  }

  void Drop(uint32_t slot, uint8_t holder) ABSL_EXCLUSIVE_LOCKS_REQUIRED(send_mu) {
    holders[slot] &= static_cast<uint8_t>(~holder);
    if (holders[slot] == 0) free_slots.push_back(slot);  // Used next: it is in the cache.
  }

  // False if there is none; then this end is woken when one comes back. Of a broken ring the receiving thread
  // is told.
  bool TakeSlot(uint8_t holder, uint32_t* slot) ABSL_EXCLUSIVE_LOCKS_REQUIRED(send_mu) {
    absl::Status reclaimed = Reclaim();
    if (reclaimed.ok() && free_slots.empty()) {
      sending->sender_starves.store(1, std::memory_order_relaxed);
      std::atomic_thread_fence(std::memory_order_seq_cst);  // As in WakeIf().
      reclaimed = Reclaim();
    }
    if (!reclaimed.ok()) WakeUp(wake_me);
    if (!reclaimed.ok() || free_slots.empty()) return false;
    sending->sender_starves.store(0, std::memory_order_relaxed);
    *slot = free_slots.back();
    free_slots.pop_back();
    holders[*slot] = holder;
    return true;
  }

  // Where a message is sent from, and how much of it, at its beginning, is not there yet.
  struct Place {
    uint32_t slot = 0;
    uint32_t offset = 0;
    size_t missing = 0;
  };

  // The place of a message whose end was written in advance, side by side, into what Reserve() gave.
  std::optional<Place> PlaceOf(const ByteChain& message) const {
    const auto slots = reinterpret_cast<uintptr_t>(region->slot(out, 0));
    std::optional<Place> place;
    const uint8_t* end = nullptr;
    size_t head = 0;
    for (const ByteChain::Piece& piece : message.pieces()) {
      if (!place.has_value()) {
        const uintptr_t at = reinterpret_cast<uintptr_t>(piece.data) - slots;
        if (at >= kShmSlots * kShmSlotBytes) {  // Or before them.
          head += piece.size;
          continue;
        }
        if (at % kShmSlotBytes != kHeadBytesMax || head > kHeadBytesMax) return std::nullopt;
        place = Place{static_cast<uint32_t>(at / kShmSlotBytes), static_cast<uint32_t>(kHeadBytesMax - head),
                      head};
        end = piece.data;
      }
      if (piece.data != end) return std::nullopt;
      end += piece.size;
    }
    return place;
  }

  // Whoever has taken the slot.
  void SendFrom(const Place& place, const ByteChain& message) {
    uint8_t* to = region->slot(out, place.slot) + place.offset;
    size_t missing = place.missing;
    for (const ByteChain::Piece& piece : message.pieces()) {
      if (missing == 0) break;
      std::memcpy(to, piece.data, piece.size);
      to += piece.size;
      missing -= piece.size;
    }
    CountCopy(CopyReason::kSharedMemory, place.missing);
    {
      MutexLock lock(&send_mu);
      sending->sent.Put({place.slot, place.offset, static_cast<uint32_t>(message.size())});
    }
    WakeIf(sending->receiver_sleeps);
  }

  const std::unique_ptr<ShmRegion> region;
  const int out;
  ShmDirection* const sending;
  ShmDirection* const receiving;
  const OwnedFd wake_me;
  const OwnedFd wake_peer;
  std::atomic<bool> closed{false};
  std::atomic<uint32_t> kept{0};  // Messages that are used in place.

  Mutex send_mu;
  std::vector<uint32_t> free_slots ABSL_GUARDED_BY(send_mu);
  std::vector<uint8_t> holders ABSL_GUARDED_BY(send_mu);
  absl::Status broken ABSL_GUARDED_BY(send_mu);
  std::deque<ByteChain> backlog ABSL_GUARDED_BY(send_mu);  // No slot was free.

  Mutex receive_mu;  // Orders those who give slots back.
};

ShmPeer::ShmPeer(Side side, std::unique_ptr<ShmRegion> region, OwnedFd socket, OwnedFd wake_me,
                 OwnedFd wake_peer)
    : link_(std::make_shared<ShmLink>(side, std::move(region), std::move(wake_me), std::move(wake_peer))),
      socket_(std::move(socket)) {}

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
  const std::optional<ShmLink::Place> written = link_->PlaceOf(message);
  ShmLink::Place place{0, 0, message.size()};
  {
    MutexLock lock(&link_->send_mu);
    if (link_->closed.load()) return false;
    if (written.has_value() && link_->holders[written->slot] == kHere) {
      link_->holders[written->slot] |= kThere;
      place = *written;
    } else if (!link_->backlog.empty() || !link_->TakeSlot(kThere, &place.slot)) {
      link_->backlog.push_back(message);
      return true;
    }
  }
  link_->SendFrom(place, message);
  return true;
}

std::shared_ptr<uint8_t[]> ShmSender::Reserve(size_t bytes) const {
  if (bytes > kShmSlotBytes - kHeadBytesMax) return nullptr;
  uint32_t slot = 0;
  {
    MutexLock lock(&link_->send_mu);
    // Slots are first for what waits for them.
    if (link_->closed.load() || !link_->backlog.empty() || !link_->TakeSlot(kHere, &slot)) return nullptr;
  }
  auto let_go = [link = link_, slot](uint8_t*) mutable {
    const std::shared_ptr<ShmLink> held = std::move(link);  // Not as long as weak pointers.
    MutexLock lock(&held->send_mu);
    held->Drop(slot, kHere);
    if (!held->backlog.empty()) WakeUp(held->wake_me);
  };
  return {link_->region->slot(link_->out, slot) + kHeadBytesMax, std::move(let_go)};
}

void ShmPeer::Close() {
  link_->closed.store(true);
  WakeUp(link_->wake_me);
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
  std::deque<ByteChain> unsent;  // Their memory is given back without the lock.
  {
    MutexLock lock(&link_->send_mu);
    link_->closed.store(true);
    link_->backlog.swap(unsent);
  }
  unsent.clear();
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
    ShmLink::Place place;
    ByteChain message;
    {
      MutexLock lock(&link_->send_mu);
      RECON_RETURN_IF_ERROR(link_->Reclaim());
      if (link_->backlog.empty() || !link_->TakeSlot(kThere, &place.slot)) return absl::OkStatus();
      message = std::move(link_->backlog.front());
      link_->backlog.pop_front();
    }
    place.missing = message.size();
    link_->SendFrom(place, message);
  }
}

// Until there is something to do; false if the other end has gone.
bool ShmPeer::Sleep() {
  link_->receiving->receiver_sleeps.store(1, std::memory_order_seq_cst);
  pollfd fds[2] = {{link_->wake_me.get(), POLLIN, 0}, {socket_.get(), POLLIN | POLLRDHUP, 0}};
  const bool wait = link_->receiving->sent.Empty() && !link_->closed.load();
  poll(fds, 2, wait ? -1 : 0);
  link_->receiving->receiver_sleeps.store(0, std::memory_order_seq_cst);
  if ((fds[0].revents & POLLIN) != 0) ForgetWakeUps(link_->wake_me);
  // Nothing is said on the socket once the connection stands.
  return fds[1].revents == 0;
}

}  // namespace recon
