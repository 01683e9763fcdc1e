#include "common/ucx/ucx_buffers.h"

#include <cstdlib>
#include <new>

namespace recon {
namespace {

constexpr size_t kSmallest = size_t{64} << 10;
constexpr size_t kAlignment = 4096;
// Of free ones.
constexpr size_t kKeptBytesMax = size_t{64} << 20;

}  // namespace

UcxBuffers::~UcxBuffers() {
  for (const auto& [bytes, buffers] : free_) {
    for (uint8_t* buffer : buffers) std::free(buffer);
  }
}

std::shared_ptr<uint8_t> UcxBuffers::Take(size_t bytes) {
  size_t size = kSmallest;
  while (size < bytes) size *= 2;
  uint8_t* buffer = nullptr;
  {
    MutexLock lock(&mu_);
    std::vector<uint8_t*>& free = free_[size];
    if (!free.empty()) {
      buffer = free.back();
      free.pop_back();
      kept_ -= size;
    }
  }
  if (buffer == nullptr) buffer = static_cast<uint8_t*>(std::aligned_alloc(kAlignment, size));
  if (buffer == nullptr) throw std::bad_alloc();
  return std::shared_ptr<uint8_t>(buffer,
                                  [pool = shared_from_this(), size](uint8_t* at) { pool->Give(at, size); });
}

void UcxBuffers::Give(uint8_t* buffer, size_t bytes) {
  {
    MutexLock lock(&mu_);
    if (kept_ + bytes <= kKeptBytesMax) {
      kept_ += bytes;
      free_[bytes].push_back(buffer);
      return;
    }
  }
  std::free(buffer);
}

}  // namespace recon
