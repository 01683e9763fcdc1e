#include "common/shm/shm_peer.h"

#include <poll.h>
#include <pthread.h>

#include <algorithm>
#include <atomic>
#include <cstring>
#include <string>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/container/inlined_vector.h"
#include "absl/strings/str_cat.h"
#include "common/base/check.h"
#include "common/base/copied_bytes.h"
#include "common/base/mutex.h"
#include "common/base/pool_allocator.h"
#include "common/base/start_thread.h"
#include "common/base/status_macros.h"

namespace recon {
namespace {

// Of a sender's entries, what its receiver may keep.
constexpr uint32_t kKeptMax = kShmEntriesMax / 2;
// And of replies a worker, in bytes: what it keeps for longer is to be its own memory, not the server's.
// (What a server keeps of requests is the worker's, which has it for as long anyway.)
constexpr size_t kRepliesKeptMax = 2 * limits::kRequestBytesInFlight;
// Replies of FP32 to a whole window of FP16 come on top of it.
static_assert(kRepliesKeptMax + 2 * limits::kRequestBytesInFlight <= limits::kRepliesBytesMax);
// A message in more pieces is copied.
constexpr size_t kMessageEntriesMax = 64;
// The first of its slots are for messages that have to be copied, the others for Reserve(). What is reserved
// may be let go only when messages are answered, so that more of them than the receiver keeps must always
// find a slot; and most copies are heads, whose slots take little memory as long as nothing else comes into
// them.
constexpr uint32_t kSlotsForCopies = kKeptMax + kMessageEntriesMax;
static_assert(kSlotsForCopies < kShmSlots);
// Instead of a slot's number: the one that the rest of the message is copied into.
constexpr uint32_t kCopied = kShmSlots;

using Entries = absl::InlinedVector<ShmRing::Entry, 4>;

}  // namespace

// What lives as long as the last message that was received, or is written in advance.
class ShmLink {
 public:
  ShmLink(ShmPeer::Side side, std::unique_ptr<ShmRegion> shared, OwnedFd me, OwnedFd peer)
      : region(std::move(shared)),
        out(side == ShmPeer::Side::kWorker ? 0 : 1),
        kept_bytes_max(side == ShmPeer::Side::kWorker ? kRepliesKeptMax : SIZE_MAX),
        sending(region->direction(out)),
        receiving(region->direction(1 - out)),
        wake_me(std::move(me)),
        wake_peer(std::move(peer)),
        uses(kShmSlots) {
    for (uint32_t slot = kShmSlots; slot-- > 0;) FreeSlotsLike(slot).push_back(slot);
  }

  // What has been sent is visible before the other end is asked whether it sleeps.
  void WakeIf(const std::atomic<uint32_t>& wants) {
    std::atomic_thread_fence(std::memory_order_seq_cst);
    if (wants.load(std::memory_order_relaxed) != 0) WakeUp(wake_peer);
  }

  // Adds an entry's bytes to its message: in place, unless so much is kept that the sender would need too
  // much memory, or could run out of entries and wait for itself. DataLoss if the entry is empty, or the
  // message gets larger than one can be.
  static absl::Status Receive(const std::shared_ptr<ShmLink>& link, const ShmRing::Entry& entry,
                              ByteChain* message) {
    if (entry.bytes == 0 || message->size() + entry.bytes > kShmSlotBytes ||
        message->pieces().size() == kMessageEntriesMax) {
      return absl::DataLossError("shared memory: an empty entry, or a message does not end");
    }
    const uint8_t* bytes = link->region->slot(1 - link->out, entry.slot) + entry.offset;
    if (link->kept.load() >= kKeptMax || link->kept_bytes.load() + entry.bytes > link->kept_bytes_max) {
      CountCopy(CopyReason::kSharedMemory, entry.bytes);
      message->Append(ByteChain::FromString(std::string(reinterpret_cast<const char*>(bytes), entry.bytes)));
      link->GiveBack(entry.slot);
      return absl::OkStatus();
    }
    link->kept.fetch_add(1);
    link->kept_bytes.fetch_add(entry.bytes);
    auto let_go = [link, slot = entry.slot, bytes = entry.bytes](const void*) mutable {
      const std::shared_ptr<ShmLink> held = std::move(link);  // Not as long as weak pointers.
      const uint32_t kept_before = held->kept.fetch_sub(1);
      const size_t bytes_before = held->kept_bytes.fetch_sub(bytes);
      RECON_CHECK_GT(kept_before, 0);
      RECON_CHECK_GE(bytes_before, bytes);
      held->GiveBack(slot);
    };
    message->Append(bytes, entry.bytes,
                    std::shared_ptr<const void>(bytes, std::move(let_go), PoolAllocator<uint8_t>()));
    return absl::OkStatus();
  }

  void GiveBack(uint32_t slot) {
    {
      MutexLock lock(&receive_mu);
      receiving->released.Put({slot, 0, 0, 0});
    }
    WakeIf(receiving->sender_starves);
  }

  // Entries that the other end has given back. Once that made no sense it fails for ever.
  absl::Status Reclaim() ABSL_EXCLUSIVE_LOCKS_REQUIRED(send_mu) {
    ShmRing::Entry entry;
    while (broken.ok()) {
      const absl::StatusOr<bool> there = sending->released.Take(&entry);
      if (!there.ok()) {
        broken = there.status();
      } else if (!*there) {
        break;
      } else if (uses[entry.slot].there == 0) {
        broken = absl::DataLossError(
            absl::StrCat("shared memory: slot ", entry.slot, " was given back, but not lent"));
      } else {
        RECON_CHECK_GT(entries_there, 0, "a slot is with the other end, and no entry is");
        --entries_there;
        --uses[entry.slot].there;
        FreeIfUnused(entry.slot);
      }
    }
    return broken;
  }

  void FreeIfUnused(uint32_t slot) ABSL_EXCLUSIVE_LOCKS_REQUIRED(send_mu) {
    const Uses& now = uses[slot];
    if (now.here == 0 && now.there == 0) FreeSlotsLike(slot).push_back(slot);
  }

  // The one given back last is used next: it is in the cache.
  std::vector<uint32_t>& FreeSlotsLike(uint32_t slot) ABSL_EXCLUSIVE_LOCKS_REQUIRED(send_mu) {
    return slot < kSlotsForCopies ? free_for_copies : free_to_reserve;
  }

  // Whether a message of so many entries can be sent, with a slot or without. If not, this end is woken when
  // something comes back. Of a broken ring the receiving thread is told.
  bool HasRoom(bool slot, size_t entries) ABSL_EXCLUSIVE_LOCKS_REQUIRED(send_mu) {
    absl::Status reclaimed = Reclaim();
    if (reclaimed.ok() && !HasRoomNow(slot, entries)) {
      sending->sender_starves.store(1, std::memory_order_relaxed);
      std::atomic_thread_fence(std::memory_order_seq_cst);  // As in WakeIf().
      reclaimed = Reclaim();
    }
    if (!reclaimed.ok()) WakeUp(wake_me);
    if (!reclaimed.ok() || !HasRoomNow(slot, entries)) return false;
    sending->sender_starves.store(0, std::memory_order_relaxed);
    return true;
  }

  bool HasRoomNow(bool slot, size_t entries) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(send_mu) {
    return (!slot || !free_for_copies.empty()) && entries_there + entries <= kShmEntriesMax;
  }

  static uint32_t TakeSlot(std::vector<uint32_t>* from) {
    RECON_CHECK(!from->empty());
    const uint32_t slot = from->back();
    from->pop_back();
    return slot;
  }

  // The entries of a message: where Reserve()'s memory has its bytes, they are sent from there.
  Entries EntriesOf(const ByteChain& message) const {
    const auto slots = reinterpret_cast<uintptr_t>(region->slot(out, 0));
    Entries entries;
    uint32_t copied = 0;
    for (const ByteChain::Piece& piece : message.pieces()) {
      const auto bytes = static_cast<uint32_t>(piece.size);
      const uintptr_t at = reinterpret_cast<uintptr_t>(piece.data) - slots;
      if (at < kShmSlots * kShmSlotBytes) {  // Not before them either.
        entries.push_back(
            {static_cast<uint32_t>(at / kShmSlotBytes), static_cast<uint32_t>(at % kShmSlotBytes), bytes, 1});
        continue;
      }
      if (!entries.empty() && entries.back().slot == kCopied) {
        entries.back().bytes += bytes;
      } else {
        entries.push_back({kCopied, copied, bytes, 1});
      }
      copied += bytes;
    }
    if (entries.size() > kMessageEntriesMax) {
      entries.assign(1, {kCopied, 0, static_cast<uint32_t>(message.size()), 1});
    }
    if (!entries.empty()) entries.back().more = 0;
    return entries;
  }

  // Sees to it that the entries can be sent. False if there is no room now.
  bool Admit(Entries* entries) ABSL_EXCLUSIVE_LOCKS_REQUIRED(send_mu) {
    const auto is_copied = [](const ShmRing::Entry& entry) { return entry.slot == kCopied; };
    const bool copies = std::any_of(entries->begin(), entries->end(), is_copied);
    if (!HasRoom(copies, entries->size())) return false;
    const uint32_t slot = copies ? TakeSlot(&free_for_copies) : 0;
    for (ShmRing::Entry& entry : *entries) {
      if (is_copied(entry)) entry.slot = slot;
      ++uses[entry.slot].there;
    }
    entries_there += entries->size();
    RECON_CHECK_LE(entries_there, kShmEntriesMax);
    return true;
  }

  // `entries`: the message's, admitted.
  void SendFrom(const Entries& entries, const ByteChain& message) {
    auto piece = message.pieces().begin();
    for (const ShmRing::Entry& entry : entries) {
      RECON_CHECK(piece != message.pieces().end(), "a message has fewer bytes than its entries");
      RECON_CHECK_LE(size_t{entry.offset} + entry.bytes, kShmSlotBytes);
      uint8_t* to = region->slot(out, entry.slot) + entry.offset;
      if (to == piece->data) {
        ++piece;
        continue;
      }
      CountCopy(CopyReason::kSharedMemory, entry.bytes);
      for (const uint8_t* end = to + entry.bytes; to != end; to += piece++->size) {
        std::memcpy(to, piece->data, piece->size);
      }
    }
    {
      MutexLock lock(&send_mu);  // A message's entries are side by side.
      for (const ShmRing::Entry& entry : entries) sending->sent.Put(entry);
    }
    WakeIf(sending->receiver_sleeps);
  }

  const std::unique_ptr<ShmRegion> region;
  const int out;
  const size_t kept_bytes_max;
  ShmDirection* const sending;
  ShmDirection* const receiving;
  const OwnedFd wake_me;
  const OwnedFd wake_peer;
  std::atomic<bool> closed{false};
  std::atomic<uint32_t> kept{0};  // Entries that are used in place, and their bytes.
  std::atomic<size_t> kept_bytes{0};

  Mutex send_mu;
  std::vector<uint32_t> free_for_copies ABSL_GUARDED_BY(send_mu);
  std::vector<uint32_t> free_to_reserve ABSL_GUARDED_BY(send_mu);
  // A slot is free without any.
  struct Uses {
    uint32_t here = 0;   // Reserve()'s memory is in use.
    uint32_t there = 0;  // Entries that are being sent, or that the other end has.
  };
  std::vector<Uses> uses ABSL_GUARDED_BY(send_mu);
  size_t entries_there ABSL_GUARDED_BY(send_mu) = 0;
  absl::Status broken ABSL_GUARDED_BY(send_mu);
  PooledDeque<ByteChain> backlog ABSL_GUARDED_BY(send_mu);  // There was no room.

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

absl::Status ShmPeer::Start(OnMessage on_message, OnClosed on_closed) {
  return StartThread(
      [this, on_message = std::move(on_message), on_closed = std::move(on_closed)] {
        pthread_setname_np(pthread_self(), "shm");
        Run(on_message, on_closed);
      },
      &thread_);
}

bool ShmSender::Send(const ByteChain& message) const {
  if (message.size() > kShmSlotBytes) return false;
  Entries entries = link_->EntriesOf(message);
  {
    MutexLock lock(&link_->send_mu);
    if (link_->closed.load()) return false;
    if (!link_->backlog.empty() || !link_->Admit(&entries)) {
      link_->backlog.push_back(message);
      return true;
    }
  }
  link_->SendFrom(entries, message);
  return true;
}

std::shared_ptr<uint8_t[]> ShmSender::Reserve(size_t bytes) const {
  if (bytes > kShmSlotBytes) return nullptr;
  uint32_t slot = 0;
  {
    MutexLock lock(&link_->send_mu);
    if (link_->closed.load()) return nullptr;
    if (!link_->Reclaim().ok()) WakeUp(link_->wake_me);  // As HasRoom() does it.
    if (!link_->broken.ok() || link_->free_to_reserve.empty()) return nullptr;
    slot = ShmLink::TakeSlot(&link_->free_to_reserve);
    RECON_CHECK(link_->uses[slot].here == 0 && link_->uses[slot].there == 0, "a free slot is in use");
    link_->uses[slot].here = 1;
  }
  link_->region->Pin(link_->out, slot);
  auto let_go = [link = link_, slot](uint8_t*) mutable {
    const std::shared_ptr<ShmLink> held = std::move(link);  // Not as long as weak pointers.
    MutexLock lock(&held->send_mu);
    RECON_CHECK_EQ(held->uses[slot].here, 1);
    held->uses[slot].here = 0;
    held->FreeIfUnused(slot);
  };
  return {link_->region->slot(link_->out, slot), std::move(let_go), PoolAllocator<uint8_t>()};
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
  PooledDeque<ByteChain> unsent;  // Their memory is given back without the lock.
  {
    MutexLock lock(&link_->send_mu);
    link_->closed.store(true);
    link_->backlog.swap(unsent);
  }
  unsent.clear();
  incoming_ = ByteChain();
  on_closed(status.ok() ? absl::UnavailableError("the connection was closed") : status);
}

absl::Status ShmPeer::ReceiveAll(const OnMessage& on_message) {
  ShmRing::Entry entry;
  while (!link_->closed.load()) {
    RECON_ASSIGN_OR_RETURN(const bool there, link_->receiving->sent.Take(&entry));
    if (!there) break;
    RECON_RETURN_IF_ERROR(ShmLink::Receive(link_, entry, &incoming_));
    if (entry.more == 0) on_message(std::exchange(incoming_, ByteChain()));
  }
  while (true) {
    Entries entries;
    ByteChain message;
    {
      MutexLock lock(&link_->send_mu);
      RECON_RETURN_IF_ERROR(link_->Reclaim());
      if (link_->backlog.empty()) return absl::OkStatus();
      entries = link_->EntriesOf(link_->backlog.front());
      if (!link_->Admit(&entries)) return absl::OkStatus();
      message = std::move(link_->backlog.front());
      link_->backlog.pop_front();
    }
    link_->SendFrom(entries, message);
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
