#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <utility>

namespace recon {

// 65,536 FP32 parameters (256 KiB), 64-byte aligned: the unit of copy-on-write, dirty tracking and
// compression.
inline constexpr size_t kPageParams = 65'536;
inline constexpr size_t kPageBytes = kPageParams * sizeof(float);

// A counted reference to a page. A page is written in place while its count is 1 and cloned otherwise
// (see Writable()); that rule gives pulls that do not copy and snapshots that stop nobody.
//
// Threads: references may be copied and dropped on any thread; only the lane that owns the shard
// calls Writable() on its own reference.
// Memory: pages come from slabs of 2 MiB; freed pages are used again and never returned to the system.
class PageRef {
 public:
  PageRef() = default;
  // The page of zeros: one for all, so that it costs nothing until it is written.
  static PageRef Zeroed();
  // A page of unspecified values, to be written.
  static PageRef New();

  PageRef(const PageRef& other);
  PageRef(PageRef&& other) noexcept : block_(std::exchange(other.block_, nullptr)) {}
  PageRef& operator=(PageRef other) noexcept {
    std::swap(block_, other.block_);
    return *this;
  }
  ~PageRef();

  const float* data() const { return block_->values; }
  // The values, for writing: in place if this is the only reference, else of a clone that this
  // reference moves to. `cloned` is set when a clone was made of what others hold, too, zeros excepted.
  float* Writable(bool* cloned);

  // Whether both refer to the same memory.
  bool SharesWith(const PageRef& other) const { return block_ == other.block_; }

 private:
  struct Block {
    std::atomic<uint32_t> references{1};
    float* values = nullptr;
  };

  static Block* NewBlock();
  static Block* ZeroBlock();
  static void Drop(Block* block);

  Block* block_ = nullptr;
};

// Takes memory for `pages` pages from the system, so that they can be had later. May throw std::bad_alloc.
void ReservePages(uint64_t pages);

// Whoever needs a page when so many are in use waits until one is given back: a snapshot keeps the pages that
// have been cloned since its cut, and gives them back as they are written. For the whole process; the default
// is no limit.
void LimitPages(uint64_t pages);
struct PageUse {
  uint64_t pages = 0;  // In use now.
  uint64_t limit = 0;
  uint64_t waits = 0;  // Times that somebody had to wait.
};
PageUse GetPageUse();

// Bytes of page memory taken from the system so far.
size_t PageMemoryBytes();

}  // namespace recon
