#include "common/base/shutdown_signal.h"

#include <poll.h>
#include <signal.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstdint>
#include <cstring>
#include <limits>

#include "absl/strings/str_cat.h"
#include "common/base/clock.h"

namespace recon {
namespace {

constexpr int kNotices[] = {SIGTERM, SIGINT, SIGHUP, SIGUSR1, SIGUSR2, SIGXCPU};
constexpr int64_t kNever = std::numeric_limits<int64_t>::max();
constexpr char kLastLine[] = "another signal while this process was ending: it ends at once\n";

std::atomic<int> g_first{0};
// When a further notice counts, in nanoseconds of the monotonic clock.
std::atomic<int64_t> g_counts_again{kNever};
std::atomic<int> g_event{-1};

// Everything that it calls may be called in a signal handler.
void OnSignal(int signal_number) {
  const int error = errno;
  int none = 0;
  if (g_first.compare_exchange_strong(none, signal_number)) {
    g_counts_again.store(MonotonicNanos() + absl::ToInt64Nanoseconds(ShutdownSignal::kGrace));
    const uint64_t one = 1;
    [[maybe_unused]] const ssize_t written = write(g_event.load(), &one, sizeof(one));
  } else if (signal_number != SIGXCPU && MonotonicNanos() >= g_counts_again.load()) {
    [[maybe_unused]] const ssize_t written = write(STDERR_FILENO, kLastLine, sizeof(kLastLine) - 1);
    signal(signal_number, SIG_DFL);
    raise(signal_number);
  }
  errno = error;
}

bool Ignored(int signal_number) {
  struct sigaction action {};
  sigaction(signal_number, nullptr, &action);
  return action.sa_handler == SIG_IGN;
}

}  // namespace

void ShutdownSignal::Install() {
  g_event.store(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  struct sigaction action {};
  action.sa_handler = OnSignal;
  action.sa_flags = SA_RESTART;
  for (const int notice : kNotices) {
    if (notice == SIGHUP && Ignored(SIGHUP)) continue;
    sigaction(notice, &action, nullptr);
  }
  signal(SIGPIPE, SIG_IGN);
}

bool ShutdownSignal::Wait(absl::Duration timeout) {
  if (g_first.load() != 0) return true;
  pollfd event{g_event.load(), POLLIN, 0};  // A negative descriptor just waits.
  poll(&event, 1, static_cast<int>(absl::ToInt64Milliseconds(timeout)));
  return g_first.load() != 0;
}

std::string ShutdownSignal::Name() {
  const int first = g_first.load();
  if (first == 0) return "";
  const char* const name = sigabbrev_np(first);
  return name == nullptr ? absl::StrCat("signal ", first) : absl::StrCat("SIG", name);
}

}  // namespace recon
