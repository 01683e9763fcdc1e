#include "common/base/start_guard.h"

#include <unistd.h>

#include <utility>

#include "common/base/log.h"
#include "common/base/shutdown_signal.h"

namespace recon {
namespace {

constexpr absl::Duration kLook = absl::Milliseconds(50);

}  // namespace

StartGuard::StartGuard(std::string what) : what_(std::move(what)), watch_([this] { Watch(); }) {}

StartGuard::~StartGuard() {
  {
    MutexLock lock(&mu_);
    ended_ = true;
  }
  watch_.join();
}

void StartGuard::Watch() {
  while (ShutdownSignal::Name().empty()) {
    if (EndedWithin(kLook)) return;
  }
  if (EndedWithin(kGrace)) return;
  LogInfo("{}: {} has not begun to serve yet, and ends at once", ShutdownSignal::Name(), what_);
  // Destructors would wait for what the start waits for.
  _exit(0);
}

bool StartGuard::EndedWithin(absl::Duration timeout) {
  MutexLock lock(&mu_);
  return mu_.AwaitFor(timeout, [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) { return ended_; });
}

}  // namespace recon
