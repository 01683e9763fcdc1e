#include "common/base/pool_allocator.h"

#include <sanitizer/asan_interface.h>

#include <algorithm>
#include <array>
#include <new>

#include "absl/base/thread_annotations.h"
#include "absl/numeric/bits.h"
#include "common/base/check.h"
#include "common/base/mutex.h"

namespace recon {
namespace {

constexpr int kSmallestBits = 5;
constexpr int kSizes = 12;
static_assert(size_t{1} << (kSmallestBits + kSizes - 1) == kPooledBytesMax);

// Blocks of one size that nobody has.
class BlockPool {
 public:
  // Null if there is none; there may then come back so many.
  void* Take(size_t blocks_max) {
    MutexLock lock(&mu_);
    if (blocks_.capacity() == 0) blocks_.reserve(blocks_max);
    if (blocks_.empty()) return nullptr;
    void* const block = blocks_.back();  // The warmest.
    blocks_.pop_back();
    return block;
  }

  // False if there are enough.
  bool Give(void* block) noexcept {
    MutexLock lock(&mu_);
    if (blocks_.size() == blocks_.capacity()) return false;
    blocks_.push_back(block);
    return true;
  }

 private:
  Mutex mu_;
  std::vector<void*> blocks_ ABSL_GUARDED_BY(mu_);
};

// A power of two that so many bytes fit into.
struct Size {
  explicit Size(size_t bytes) : bits(std::max(static_cast<int>(absl::bit_width(bytes - 1)), kSmallestBits)) {}
  size_t bytes() const { return size_t{1} << bits; }
  int bits;
};

// Never destroyed: others are, as the process ends.
BlockPool& PoolOf(Size size) {
  static auto* const pools = new std::array<BlockPool, kSizes>;
  return (*pools)[static_cast<size_t>(size.bits - kSmallestBits)];
}

}  // namespace

void* TakePooled(size_t bytes) {
  RECON_CHECK_GE(bytes, 1);
  if (bytes > kPooledBytesMax) return ::operator new(bytes);
  const Size size(bytes);
  void* const block = PoolOf(size).Take(kPooledBytesKept / size.bytes());
  if (block == nullptr) return ::operator new(size.bytes());
  ASAN_UNPOISON_MEMORY_REGION(block, size.bytes());
  return block;
}

void GivePooled(void* block, size_t bytes) noexcept {
  RECON_CHECK(block != nullptr && bytes > 0);
  if (bytes > kPooledBytesMax) return ::operator delete(block);
  const Size size(bytes);
  ASAN_POISON_MEMORY_REGION(block, size.bytes());
  if (PoolOf(size).Give(block)) return;
  ASAN_UNPOISON_MEMORY_REGION(block, size.bytes());
  ::operator delete(block);
}

}  // namespace recon
