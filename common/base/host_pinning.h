#pragma once

#include <cstddef>
#include <map>

#include "absl/base/thread_annotations.h"
#include "common/base/mutex.h"

namespace recon {

// How a device's driver page-locks host memory of ours, so that its copy engines read and write it without a
// copy in between. Functions of what is loaded for the device, and never unloaded.
struct HostPinning {
  // False if it cannot be: then it is memory like other. A range is pinned once, and a copy lies in one
  // range.
  bool (*pin)(void* begin, size_t bytes) = nullptr;
  void (*unpin)(void* begin) = nullptr;
};

// From now on, for the whole process: of the device that it uses. Without functions: none. Thread-safe.
void SetHostPinning(const HostPinning& pinning);

// What is pinned of a mapping: nothing, unless SetHostPinning() was called.
//
// Threads: thread-safe.
class PinnedRanges {
 public:
  PinnedRanges() = default;
  // While the mapping still exists.
  ~PinnedRanges();
  PinnedRanges(const PinnedRanges&) = delete;
  PinnedRanges& operator=(const PinnedRanges&) = delete;

  // Tries it the first time it is asked for: it takes a few milliseconds for as many MiB, and memory for
  // pages that nobody has touched yet. Always with as many bytes.
  void Pin(void* begin, size_t bytes);

 private:
  Mutex mu_;
  void (*unpin_)(void* begin) = nullptr;
  std::map<void*, bool> ranges_ ABSL_GUARDED_BY(mu_);  // Whether it could be pinned.
};

}  // namespace recon
