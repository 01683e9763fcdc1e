#pragma once

#include <memory>

#include "absl/container/inlined_vector.h"
#include "absl/types/span.h"
#include "common/base/byte_chain.h"

namespace recon {

// An encoding that lives as long as somebody is sending it or what was encoded with it for one reply, and can
// be had again until then: a shard that kept its own would add a quarter to the server's memory.
//
// Not thread-safe; the bytes may be dropped on any thread.
class LentBytes {
 public:
  // `bytes` of one owner.
  void Lend(const ByteChain& bytes);
  // Empty once all have given it back.
  ByteChain Get() const;

 private:
  std::weak_ptr<const void> owner_;
  absl::InlinedVector<absl::Span<const uint8_t>, 3> pieces_;
};

}  // namespace recon
