#include "common/base/host_pinning.h"

#include <atomic>

namespace recon {
namespace {

std::atomic<const HostPinning*> current{nullptr};

}  // namespace

// Never destroyed: whoever has read the pointer may still use it.
void SetHostPinning(const HostPinning& pinning) { current.store(new HostPinning(pinning)); }

PinnedRanges::~PinnedRanges() {
  for (const auto& [begin, pinned] : ranges_) {
    if (pinned) unpin_(begin);
  }
}

void PinnedRanges::Pin(void* begin, size_t bytes) {
  const HostPinning* const pinning = current.load();
  if (pinning == nullptr || pinning->pin == nullptr) return;
  MutexLock lock(&mu_);
  unpin_ = pinning->unpin;
  const auto [range, is_new] = ranges_.try_emplace(begin, false);
  if (is_new) range->second = pinning->pin(begin, bytes);
}

}  // namespace recon
