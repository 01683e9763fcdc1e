#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>

#include "absl/status/statusor.h"
#include "common/base/host_pinning.h"
#include "common/base/limits.h"

namespace recon {

// Memory that a worker and a server on one machine share: slots for messages, and rings that say which slots
// are sent and which are given back. The worker makes it (memfd) and hands it over through a Unix socket.
//
// Each direction has slots of its own. Their sender chooses a free one, fills it, and puts what it has
// written into `sent`: a message is one entry, or several in a row, whose bytes follow one another. Parts of
// one slot may be sent in many entries, again and again: what is written there in advance is sent from where
// it is. The receiver reads each entry's bytes where they are, and puts the slot's number into `released`
// when it needs them no longer, once for each entry, in any order. Slots are larger than any message; only
// what is touched takes memory.
//
// The two ends are processes of one user: each could read and write the other's memory anyway. What a broken
// peer writes is checked before it is used as an index or a length.

inline constexpr uint32_t kShmSlots = 4096;
inline constexpr size_t kShmSlotBytes = limits::kFrameBytesMax + (size_t{64} << 10);

// Entries that are sent and not yet given back, at most; so many fit into either ring. A power of two.
inline constexpr uint32_t kShmEntriesMax = kShmSlots;

// Of one producer and one consumer.
struct ShmRing {
  struct Entry {
    uint32_t slot = 0;
    uint32_t offset = 0;  // Of the bytes in their slot.
    uint32_t bytes = 0;
    uint32_t more = 0;  // 1: the message goes on with the next entry.
  };

  alignas(64) std::atomic<uint32_t> put;    // Entries ever put in, modulo 2^32; the producer's.
  alignas(64) std::atomic<uint32_t> taken;  // The consumer's.
  alignas(64) Entry entries[kShmEntriesMax];

  // There must be room.
  void Put(Entry entry);
  // False if the ring is empty; DataLoss if what the producer wrote makes no sense.
  absl::StatusOr<bool> Take(Entry* entry);
  bool Empty() const;
};
static_assert(std::atomic<uint32_t>::is_always_lock_free, "shared between processes");

struct ShmDirection {
  ShmRing sent;
  ShmRing released;
  alignas(64) std::atomic<uint32_t> receiver_sleeps;  // It has to be woken for the next message.
  std::atomic<uint32_t> sender_starves;               // It has to be woken for the next slot given back.
};

struct ShmHeader {
  uint64_t magic;
  uint32_t version;
  uint32_t slots;
  uint64_t slot_bytes;
  ShmDirection directions[2];  // Requests, replies.
};

// One end's mapping. Thread-safe, but for what the rings say.
class ShmRegion {
 public:
  // A new region and its file descriptor, which cannot shrink. Unavailable if the system refuses.
  static absl::StatusOr<std::unique_ptr<ShmRegion>> Create();
  // A region that somebody else made; takes `fd` over. InvalidArgument, with the reason, if it is none.
  static absl::StatusOr<std::unique_ptr<ShmRegion>> Attach(int fd);
  ~ShmRegion();
  ShmRegion(const ShmRegion&) = delete;
  ShmRegion& operator=(const ShmRegion&) = delete;

  int fd() const { return fd_; }
  ShmDirection* direction(int which) { return &header_->directions[which]; }
  uint8_t* slot(int which, uint32_t number);
  // From now on a device of this process, if it uses one, copies to and from the slot as fast as it can.
  void Pin(int which, uint32_t number) { pinned_->Pin(slot(which, number), kShmSlotBytes); }

 private:
  ShmRegion(int fd, void* memory) : fd_(fd), header_(static_cast<ShmHeader*>(memory)) {}

  const int fd_;
  ShmHeader* const header_;
  std::unique_ptr<PinnedRanges> pinned_ = std::make_unique<PinnedRanges>();
};

}  // namespace recon
