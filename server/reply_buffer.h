#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <utility>
#include <vector>

#include "common/codec/frame.h"
#include "common/transport/transport.h"

namespace recon {

// Where the parts of a reply that has all parameters of its shards are encoded: side by side, in the
// transport's memory if it has some. If not every part has all, each apart.
//
// Threads: thread-safe.
class ReplyBuffer {
 public:
  explicit ReplyBuffer(ReplyMemory memory) : memory_(std::move(memory)) {}

  // EncodedBytes() of the reply's part `index`. `request`: the same frame every time.
  std::shared_ptr<uint8_t[]> ForPart(const Frame& request, size_t index);

 private:
  void Allocate(const Frame& request);

  const ReplyMemory memory_;
  std::once_flag allocated_;  // ThreadSanitizer knows it, and not Abseil's.
  std::shared_ptr<uint8_t[]> all_;
  std::vector<size_t> offsets_;  // In all_, of each part.
};

}  // namespace recon
