#include "common/base/copied_bytes.h"

#include <atomic>
#include <cstddef>
#include <iterator>

namespace recon {
namespace {

std::atomic<uint64_t> copied[std::size(kCopyReasons)];

}  // namespace

const char* CopyReasonName(CopyReason reason) {
  switch (reason) {
    case CopyReason::kStraddling:
      return "straddling";
    case CopyReason::kHeader:
      return "header";
    case CopyReason::kSharedMemory:
      return "shared_memory";
    case CopyReason::kUcx:
      return "ucx";
  }
  return "unknown";
}

void CountCopy(CopyReason reason, uint64_t bytes) {
  copied[static_cast<size_t>(reason)].fetch_add(bytes, std::memory_order_relaxed);
}

uint64_t CopiedBytes(CopyReason reason) {
  return copied[static_cast<size_t>(reason)].load(std::memory_order_relaxed);
}

}  // namespace recon
