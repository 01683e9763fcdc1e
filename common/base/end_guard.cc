#include "common/base/end_guard.h"

#include <unistd.h>

#include "common/base/log.h"

namespace recon {

EndGuard::EndGuard(absl::Duration grace) : grace_(grace), watch_([this] { Watch(); }) {}

EndGuard::~EndGuard() {
  {
    MutexLock lock(&mu_);
    ended_ = true;
  }
  watch_.join();
}

void EndGuard::Expect(int exit_code) {
  MutexLock lock(&mu_);
  exit_code_ = exit_code;
}

void EndGuard::Watch() {
  int exit_code = 0;
  {
    MutexLock lock(&mu_);
    mu_.Await([this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) { return ended_ || exit_code_.has_value(); });
    if (mu_.AwaitFor(grace_, [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) { return ended_; })) return;
    exit_code = *exit_code_;
  }
  LogWarn("some threads of this process have not ended within {}: it ends without them, with {}",
          absl::FormatDuration(grace_), exit_code);
  // Destructors would wait for what they wait for.
  _exit(exit_code);
}

}  // namespace recon
