#pragma once

#include <cstddef>
#include <deque>
#include <memory>
#include <utility>
#include <vector>

namespace recon {

// Memory of what comes and goes with every frame: what is given back, on whatever thread, is kept and handed
// to the next who asks for about as much. In steady state nothing is allocated. (A recycling allocator, as
// Boost.Asio has one; that of a process, since what one thread makes another lets go.)
//
// Sizes are rounded up to powers of two. Larger blocks than kPooledBytesMax come from the heap and go back to
// it; of each size at most kPooledBytesKept are kept. AddressSanitizer sees uses of what was given back.
//
// Threads: thread-safe.
inline constexpr size_t kPooledBytesMax = size_t{64} << 10;
inline constexpr size_t kPooledBytesKept = size_t{512} << 10;

// `bytes`: at least 1. As aligned as operator new's. Throws std::bad_alloc.
void* TakePooled(size_t bytes);
// `bytes`: as it was taken.
void GivePooled(void* block, size_t bytes) noexcept;

// For containers and std::allocate_shared().
template <typename T>
class PoolAllocator {
 public:
  static_assert(alignof(T) <= alignof(std::max_align_t));
  using value_type = T;

  PoolAllocator() = default;
  template <typename U>
  PoolAllocator(const PoolAllocator<U>& /*other*/) noexcept {}  // NOLINT: an allocator converts.

  T* allocate(size_t count) { return static_cast<T*>(TakePooled(count * sizeof(T))); }
  void deallocate(T* block, size_t count) noexcept { GivePooled(block, count * sizeof(T)); }

  template <typename U>
  bool operator==(const PoolAllocator<U>& /*other*/) const {
    return true;
  }
  template <typename U>
  bool operator!=(const PoolAllocator<U>& /*other*/) const {
    return false;
  }
};

template <typename T>
using PooledVector = std::vector<T, PoolAllocator<T>>;
template <typename T>
using PooledDeque = std::deque<T, PoolAllocator<T>>;

template <typename T, typename... Args>
std::shared_ptr<T> MakePooled(Args&&... args) {
  return std::allocate_shared<T>(PoolAllocator<T>(), std::forward<Args>(args)...);
}

// `function`, which lies in pooled memory: as small as a pointer's owner, so that absl::AnyInvocable has it
// in place. It is no copy's: copies share it.
template <typename Function>
auto Pooled(Function function) {
  return [held = MakePooled<Function>(std::move(function))](auto&&... args) -> decltype(auto) {
    return (*held)(std::forward<decltype(args)>(args)...);
  };
}

}  // namespace recon
