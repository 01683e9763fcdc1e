#include "common/base/shutdown_signal.h"

#include <signal.h>
#include <time.h>

#include <atomic>

namespace recon {
namespace {

std::atomic<bool> g_came{false};

sigset_t Signals() {
  sigset_t set;
  sigemptyset(&set);
  sigaddset(&set, SIGTERM);
  sigaddset(&set, SIGINT);
  return set;
}

}  // namespace

void ShutdownSignal::Block() {
  const sigset_t set = Signals();
  pthread_sigmask(SIG_BLOCK, &set, nullptr);
  signal(SIGPIPE, SIG_IGN);
}

bool ShutdownSignal::Wait(absl::Duration timeout) {
  if (g_came.load()) {
    return true;
  }
  const sigset_t set = Signals();
  const timespec wait = absl::ToTimespec(timeout);
  if (sigtimedwait(&set, nullptr, &wait) < 0) return false;
  g_came.store(true);
  signal(SIGTERM, SIG_DFL);
  signal(SIGINT, SIG_DFL);
  pthread_sigmask(SIG_UNBLOCK, &set, nullptr);
  return true;
}

}  // namespace recon
