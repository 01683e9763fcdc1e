#include "common/tensor/page.h"

#include <sys/mman.h>

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <new>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "common/base/check.h"
#include "common/base/mutex.h"
#include "common/base/pool_allocator.h"

namespace recon {
namespace {

constexpr size_t kSlabBytes = size_t{2} << 20;
constexpr size_t kPagesASlab = kSlabBytes / kPageBytes;
static_assert(kSlabBytes % kPageBytes == 0);

// Aligned to its size. Not from the heap: there every aligned block leaves a gap of nearly its size, which
// messages' buffers later fill one after the other, and a server's memory would double.
char* MapSlab() {
  void* mapped = mmap(nullptr, 2 * kSlabBytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (mapped == MAP_FAILED) throw std::bad_alloc();
  // The last of the range, since mappings grow downwards: the next one borders on it, and they become one.
  char* const begin = static_cast<char*>(mapped);
  char* const end = begin + 2 * kSlabBytes;
  char* const slab = end - reinterpret_cast<uintptr_t>(end) % kSlabBytes - kSlabBytes;
  if (slab > begin) munmap(begin, static_cast<size_t>(slab - begin));
  if (slab + kSlabBytes < end) munmap(slab + kSlabBytes, static_cast<size_t>(end - slab) - kSlabBytes);
  return slab;
}

// Free page memory. Never destroyed: references may outlive static destruction.
class PagePool {
 public:
  static PagePool& Get() {
    static PagePool& pool = *new PagePool();
    return pool;
  }

  struct Page {
    float* values;
    bool fresh;  // Nobody has written to it yet.
  };
  Page Take() {
    MutexLock lock(&mu_);
    if (use_.pages >= use_.limit) {
      ++use_.waits;
      mu_.Await([this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) { return use_.pages < use_.limit; });
    }
    if (free_.empty() && fresh_.empty()) AddSlab();
    ++use_.pages;
    const bool fresh = free_.empty();
    std::vector<float*>& from = fresh ? fresh_ : free_;
    RECON_CHECK_LE(use_.pages, use_.limit);
    float* values = from.back();
    from.pop_back();
    return {values, fresh};
  }

  void Give(float* values) {
    MutexLock lock(&mu_);
    RECON_CHECK_GT(use_.pages, 0, "a page is given back that nobody has");
    free_.push_back(values);
    --use_.pages;
  }

  void Limit(uint64_t pages) {
    MutexLock lock(&mu_);
    use_.limit = pages;
  }

  PageUse use() {
    MutexLock lock(&mu_);
    return use_;
  }

  void Reserve(uint64_t pages) {
    MutexLock lock(&mu_);
    const size_t before = fresh_.size();
    while (free_.size() + fresh_.size() < pages) AddSlab();
    // Pages of one slab share a page table and its lock: threads that take pages at the same time get them of
    // different slabs.
    const std::vector<float*> added(fresh_.begin() + static_cast<std::ptrdiff_t>(before), fresh_.end());
    const size_t slabs = added.size() / kPagesASlab;
    for (size_t i = 0; i < added.size(); ++i) fresh_[before + i] = added[i % slabs * kPagesASlab + i / slabs];
  }

  size_t bytes() {
    MutexLock lock(&mu_);
    return bytes_;
  }

 private:
  void AddSlab() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    char* slab = MapSlab();
    for (size_t at = 0; at < kSlabBytes; at += kPageBytes) {
      fresh_.push_back(reinterpret_cast<float*>(slab + at));
    }
    bytes_ += kSlabBytes;
  }

  Mutex mu_;
  std::vector<float*> free_ ABSL_GUARDED_BY(mu_);
  std::vector<float*> fresh_ ABSL_GUARDED_BY(mu_);
  size_t bytes_ ABSL_GUARDED_BY(mu_) = 0;
  PageUse use_ ABSL_GUARDED_BY(mu_) = {0, UINT64_MAX, 0};
};

// Asks for the memory of a page at once: faults on its 64 pages of 4 KiB, one by one, cost more. No huge
// pages: kernels stream through them no faster, and a virtual machine may have given large free blocks back
// to its host, which must find and clear them again while somebody waits.
void Touch(float* values) {
#if defined(MADV_POPULATE_WRITE)
  madvise(values, kPageBytes, MADV_POPULATE_WRITE);  // Older kernels refuse: then it comes as it is used.
#else
  static_cast<void>(values);
#endif
}

}  // namespace

PageRef::Block* PageRef::NewBlock() {
  auto* block = new (PoolAllocator<Block>().allocate(1)) Block;
  const PagePool::Page page = PagePool::Get().Take();
  if (page.fresh) Touch(page.values);
  block->values = page.values;
  return block;
}

void PageRef::Drop(Block* block) {
  if (block == nullptr) return;
  const uint32_t references = block->references.fetch_sub(1, std::memory_order_acq_rel);
  RECON_CHECK_GE(references, 1, "a page is dropped more often than it was referred to");
  if (references != 1) return;
  PagePool::Get().Give(block->values);
  block->~Block();
  PoolAllocator<Block>().deallocate(block, 1);
}

// Never dropped by the last reference: this one is not.
PageRef::Block* PageRef::ZeroBlock() {
  static Block* const zeros = [] {
    Block* block = NewBlock();
    std::memset(block->values, 0, kPageBytes);
    return block;
  }();
  return zeros;
}

PageRef PageRef::Zeroed() {
  PageRef page;
  page.block_ = ZeroBlock();
  page.block_->references.fetch_add(1, std::memory_order_relaxed);
  return page;
}

PageRef PageRef::New() {
  PageRef page;
  page.block_ = NewBlock();
  return page;
}

PageRef::PageRef(const PageRef& other) : block_(other.block_) {
  if (block_ != nullptr) block_->references.fetch_add(1, std::memory_order_relaxed);
}

PageRef::~PageRef() { Drop(block_); }

float* PageRef::Writable(bool* cloned) {
  RECON_CHECK(block_ != nullptr);
  *cloned = false;
  // Acquire: the last reader's loads happen before our stores.
  if (block_->references.load(std::memory_order_acquire) == 1) return block_->values;
  Block* clone = NewBlock();
  std::memcpy(clone->values, block_->values, kPageBytes);
  *cloned = block_ != ZeroBlock();
  Drop(std::exchange(block_, clone));
  return block_->values;
}

void ReservePages(uint64_t pages) { PagePool::Get().Reserve(pages); }

void LimitPages(uint64_t pages) { PagePool::Get().Limit(pages); }

PageUse GetPageUse() { return PagePool::Get().use(); }

size_t PageMemoryBytes() { return PagePool::Get().bytes(); }

}  // namespace recon
