#include "common/base/host_pinning.h"

#include <atomic>

#include "common/base/check.h"

namespace recon {
namespace {

// Whoever sees the first one sees the second.
std::atomic<decltype(HostPinning::pin)> current_pin{nullptr};
std::atomic<decltype(HostPinning::unpin)> current_unpin{nullptr};

}  // namespace

void SetHostPinning(const HostPinning& pinning) {
  current_unpin.store(pinning.unpin);
  current_pin.store(pinning.pin);
}

PinnedRanges::~PinnedRanges() {
  for (const auto& [begin, pinned] : ranges_) {
    if (!pinned) continue;
    RECON_CHECK(unpin_ != nullptr);
    unpin_(begin);
  }
}

void PinnedRanges::Pin(void* begin, size_t bytes) {
  const auto pin = current_pin.load();
  if (pin == nullptr) return;
  MutexLock lock(&mu_);
  unpin_ = current_unpin.load();
  const auto [range, is_new] = ranges_.try_emplace(begin, false);
  if (is_new) range->second = pin(begin, bytes);
}

}  // namespace recon
