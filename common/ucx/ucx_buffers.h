#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "common/base/mutex.h"

namespace recon {

// Memory that messages are sent from and received to: used again and again, so that a fabric's adapter
// registers it once. Sizes are powers of two.
//
// Threads: thread-safe.
// Ownership: buffers come back by themselves, and may outlive the pool's owner.
class UcxBuffers : public std::enable_shared_from_this<UcxBuffers> {
 public:
  ~UcxBuffers();
  // At least so many bytes.
  std::shared_ptr<uint8_t> Take(size_t bytes);

 private:
  void Give(uint8_t* buffer, size_t bytes);

  Mutex mu_;
  std::map<size_t, std::vector<uint8_t*>> free_ ABSL_GUARDED_BY(mu_);
  size_t kept_ ABSL_GUARDED_BY(mu_) = 0;
};

}  // namespace recon
