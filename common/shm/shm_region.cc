#include "common/shm/shm_region.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <new>

#include "absl/strings/str_cat.h"

namespace recon {
namespace {

constexpr uint64_t kMagic = 0x314D48534E434552;  // "RECNSHM1"
constexpr uint32_t kVersion = 3;
constexpr size_t kPage = 4096;
constexpr size_t kHeaderBytes = (sizeof(ShmHeader) + kPage - 1) / kPage * kPage;
constexpr size_t kRegionBytes = kHeaderBytes + 2 * size_t{kShmSlots} * kShmSlotBytes;
static_assert(kShmSlotBytes % kPage == 0 && (kShmEntriesMax & (kShmEntriesMax - 1)) == 0);

absl::Status SystemError(const char* call) {
  return absl::UnavailableError(absl::StrCat("shared memory: ", call, ": ", strerror(errno)));
}

}  // namespace

void ShmRing::Put(Entry entry) {
  const uint32_t at = put.load(std::memory_order_relaxed);
  entries[at % kShmEntriesMax] = entry;
  put.store(at + 1, std::memory_order_release);
}

absl::StatusOr<bool> ShmRing::Take(Entry* entry) {
  const uint32_t at = taken.load(std::memory_order_relaxed);
  const uint32_t there = put.load(std::memory_order_acquire) - at;
  if (there == 0) return false;
  *entry = entries[at % kShmEntriesMax];
  if (there > kShmEntriesMax || entry->slot >= kShmSlots ||
      uint64_t{entry->offset} + entry->bytes > kShmSlotBytes) {
    return absl::DataLossError(absl::StrCat("shared memory: ", there, " entries, slot ", entry->slot,
                                            " from byte ", entry->offset, ", ", entry->bytes,
                                            " bytes; there are ", kShmSlots, " of ", kShmSlotBytes));
  }
  taken.store(at + 1, std::memory_order_release);
  return true;
}

bool ShmRing::Empty() const {
  return put.load(std::memory_order_seq_cst) == taken.load(std::memory_order_relaxed);
}

absl::StatusOr<std::unique_ptr<ShmRegion>> ShmRegion::Create() {
  const int fd = memfd_create("recon-frames", MFD_CLOEXEC | MFD_ALLOW_SEALING);
  if (fd < 0) return SystemError("memfd_create");
  if (ftruncate(fd, static_cast<off_t>(kRegionBytes)) != 0 ||
      fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL) != 0) {
    const absl::Status status = SystemError("ftruncate");
    close(fd);
    return status;
  }
  void* memory = mmap(nullptr, kRegionBytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_NORESERVE, fd, 0);
  if (memory == MAP_FAILED) {
    const absl::Status status = SystemError("mmap");
    close(fd);
    return status;
  }
  auto* header = new (memory) ShmHeader{};
  header->slots = kShmSlots;
  header->slot_bytes = kShmSlotBytes;
  header->version = kVersion;
  header->magic = kMagic;
  return std::unique_ptr<ShmRegion>(new ShmRegion(fd, memory));
}

absl::StatusOr<std::unique_ptr<ShmRegion>> ShmRegion::Attach(int fd) {
  struct stat info {};
  const auto refuse = [fd](const std::string& why) {
    close(fd);
    return absl::InvalidArgumentError(absl::StrCat("shared memory: ", why));
  };
  // One that can shrink would end this process when it reads what is gone.
  const int seals = fcntl(fd, F_GET_SEALS);
  if (seals < 0 || (seals & F_SEAL_SHRINK) == 0)
    return refuse("not a memfd that is sealed against shrinking");
  if (fstat(fd, &info) != 0 || static_cast<size_t>(info.st_size) != kRegionBytes) {
    return refuse(absl::StrCat("size is ", info.st_size, ", expected ", kRegionBytes));
  }
  void* memory = mmap(nullptr, kRegionBytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_NORESERVE, fd, 0);
  if (memory == MAP_FAILED) return refuse(absl::StrCat("mmap: ", strerror(errno)));
  const auto* header = static_cast<const ShmHeader*>(memory);
  if (header->magic != kMagic || header->version != kVersion || header->slots != kShmSlots ||
      header->slot_bytes != kShmSlotBytes) {
    const std::string why = absl::StrCat("format version is ", header->version, " with ", header->slots,
                                         " slots, expected ", kVersion, " with ", kShmSlots);
    munmap(memory, kRegionBytes);
    return refuse(why);
  }
  return std::unique_ptr<ShmRegion>(new ShmRegion(fd, memory));
}

ShmRegion::~ShmRegion() {
  pinned_ = nullptr;
  munmap(header_, kRegionBytes);
  close(fd_);
}

uint8_t* ShmRegion::slot(int which, uint32_t number) {
  const size_t index = static_cast<size_t>(which) * kShmSlots + number;
  return reinterpret_cast<uint8_t*>(header_) + kHeaderBytes + index * kShmSlotBytes;
}

}  // namespace recon
