#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <utility>

#include "common/base/pool_allocator.h"
#include "common/codec/frame.h"
#include "common/transport/transport.h"

namespace recon {

// Where the parts of a reply that has all parameters of its shards are encoded. Over the gradients they
// answer, if the transport allows it and they have as many bytes: these are in the cache. Else side by side,
// in the transport's memory if it has some; if not every part has all, each apart.
//
// Threads: thread-safe.
class ReplyBuffer {
 public:
  explicit ReplyBuffer(RequestContext context) : context_(std::move(context)) {}

  // EncodedBytes() of the reply's part `index`, of one owner. `request`: the same frame every time.
  // `gradient`: the payload of its part `index`.
  ByteChain ForPart(const Frame& request, size_t index, const ByteChain& gradient);

 private:
  bool OverRequest(const Frame& request, size_t index) const;
  void Allocate(const Frame& request);

  RequestContext context_;
  std::once_flag allocated_;  // ThreadSanitizer knows it, and not Abseil's.
  std::shared_ptr<uint8_t[]> all_;
  PooledVector<size_t> offsets_;  // In all_, of each part.
};

}  // namespace recon
