#pragma once

#include <cstdint>

namespace recon {

// Why bytes of frames were copied between the network and where they are used: everything else is read and
// sent in place. Decoding and encoding are no copies.
enum class CopyReason {
  kStraddling,    // A reader needed them side by side, and they lay in two buffers.
  kHeader,        // Headers and tables: a buffer of their own would cost more.
  kSharedMemory,  // Into a peer's memory: what a network's stack would do otherwise.
  kUcx,           // Out of UCX's: a small message.
};
inline constexpr CopyReason kCopyReasons[] = {CopyReason::kStraddling, CopyReason::kHeader,
                                              CopyReason::kSharedMemory, CopyReason::kUcx};
const char* CopyReasonName(CopyReason reason);

// Thread-safe; of the whole process, since it started.
void CountCopy(CopyReason reason, uint64_t bytes);
uint64_t CopiedBytes(CopyReason reason);

}  // namespace recon
