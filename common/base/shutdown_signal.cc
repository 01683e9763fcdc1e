#include "common/base/shutdown_signal.h"

#include <poll.h>
#include <signal.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <atomic>
#include <cstdint>

namespace recon {
namespace {

std::atomic<bool> g_came{false};
std::atomic<int> g_event{-1};

void OnSignal(int signal_number) {
  if (g_came.exchange(true)) {
    signal(signal_number, SIG_DFL);
    raise(signal_number);
    return;
  }
  const uint64_t one = 1;
  [[maybe_unused]] const ssize_t written = write(g_event.load(), &one, sizeof(one));
}

}  // namespace

void ShutdownSignal::Install() {
  g_event.store(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  struct sigaction action {};
  action.sa_handler = OnSignal;
  action.sa_flags = SA_RESTART;
  sigaction(SIGTERM, &action, nullptr);
  sigaction(SIGINT, &action, nullptr);
  signal(SIGPIPE, SIG_IGN);
}

bool ShutdownSignal::Wait(absl::Duration timeout) {
  if (g_came.load()) return true;
  pollfd event{g_event.load(), POLLIN, 0};  // A negative descriptor just waits.
  poll(&event, 1, static_cast<int>(absl::ToInt64Milliseconds(timeout)));
  return g_came.load();
}

}  // namespace recon
