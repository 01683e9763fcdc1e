#pragma once

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <memory>
#include <new>

namespace recon {

// Memory that begins where any disk can be read to past the page cache. Kept from read to read: fresh memory
// costs as much as reading it. One thread.
class AlignedBuffer {
 public:
  static constexpr uint64_t kAlign = 4096;
  static constexpr uint64_t Down(uint64_t bytes) { return bytes / kAlign * kAlign; }
  static constexpr uint64_t Up(uint64_t bytes) { return Down(bytes + kAlign - 1); }

  // At least `bytes`; what was in it is gone if it grows.
  char* Reserve(uint64_t bytes) {
    if (bytes > capacity_) {
      bytes_.reset(static_cast<char*>(std::aligned_alloc(kAlign, Up(bytes))));
      capacity_ = bytes_ == nullptr ? 0 : Up(bytes);
      if (bytes_ == nullptr) throw std::bad_alloc();
    }
    return bytes_.get();
  }

 private:
  struct Free {
    void operator()(char* bytes) const { std::free(bytes); }
  };
  std::unique_ptr<char, Free> bytes_;
  uint64_t capacity_ = 0;
};

}  // namespace recon
