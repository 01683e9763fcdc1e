#include "common/base/alarm.h"

#include <algorithm>
#include <utility>

#include "common/base/check.h"
#include "common/base/clock.h"

namespace recon {
namespace {

// A condition is not waited for without end.
constexpr absl::Duration kLookAgain = absl::Hours(1);

}  // namespace

Alarm::Alarm(std::function<void()> ring) : ring_(std::move(ring)), thread_([this] { Run(); }) {}

Alarm::~Alarm() {
  {
    MutexLock lock(&mu_);
    stopping_ = true;
  }
  thread_.join();
}

void Alarm::Set(absl::Time at) {
  MutexLock lock(&mu_);
  moved_ = moved_ || at != at_;
  at_ = at;
}

void Alarm::Run() {
  while (true) {
    {
      MutexLock lock(&mu_);
      moved_ = false;
      // A moment too late rather than too early: it would look again and again.
      const absl::Duration left =
          std::clamp(at_ - Now(), absl::ZeroDuration(), kLookAgain) + absl::Milliseconds(1);
      mu_.AwaitFor(left, [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) { return stopping_ || moved_; });
      if (stopping_) return;
      if (moved_ || Now() < at_) continue;
      RECON_CHECK(at_ < absl::InfiniteFuture(), "an alarm rings that is not set");
      at_ = absl::InfiniteFuture();
    }
    ring_();
  }
}

}  // namespace recon
