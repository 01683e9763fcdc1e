#include "server/durability/encoder_threads.h"

#include <pthread.h>
#include <sched.h>
#include <sys/resource.h>

#include <algorithm>
#include <system_error>
#include <thread>
#include <vector>

#include "common/base/check.h"
#include "common/base/clock.h"
#include "common/base/cpu_usage.h"
#include "common/base/sleep.h"
#include "common/base/status_macros.h"
#include "common/tensor/page.h"

namespace recon {
namespace {

// Behind training: a tenth of what a busy core's other threads get; and, as the memory's bandwidth has no
// priorities, this much of the time at most.
constexpr int kBackgroundPriority = 10;
constexpr double kBackgroundShare = 0.09;

// The calling thread gives way to others.
void StepBack() {
  (void)setpriority(PRIO_PROCESS, 0, kBackgroundPriority);  // On Linux it is the thread's.
  // When it has rested it does not push a thread that runs off its core.
  const sched_param param{};
  (void)pthread_setschedparam(pthread_self(), SCHED_BATCH, &param);
}

}  // namespace

absl::Status RunEncoders(int threads, bool background, const std::function<absl::Status()>& work) {
  RECON_CHECK_GE(threads, 1);
  std::vector<absl::Status> statuses(static_cast<size_t>(threads));
  std::vector<std::thread> running;
  for (int i = 0; i < threads; ++i) {
    const auto body = [&, i] {
      if (background) StepBack();
      statuses[static_cast<size_t>(i)] = work();
    };
    try {
      running.emplace_back(body);
    } catch (const std::system_error&) {  // No more threads: those there are do all, if need be this one.
      break;
    }
  }
  if (running.empty()) statuses[0] = work();
  for (std::thread& thread : running) thread.join();
  for (const absl::Status& status : statuses) RECON_RETURN_IF_ERROR(status);
  return absl::OkStatus();
}

Pacer::Pacer(bool background, const std::atomic<int>* hurry)
    : background_(background),
      hurry_(hurry),
      pages_before_(GetPageUse().pages),
      used_before_(ThreadCpuSeconds()),
      rested_(Now()) {}

void Pacer::Rest() {
  constexpr absl::Duration kNap = absl::Milliseconds(20);
  if (!background_) return;
  const absl::Time until = rested_ + absl::Seconds((ThreadCpuSeconds() - used_before_) / kBackgroundShare);
  while (hurry_->load() == 0 && !MemoryIsShort()) {
    const absl::Duration left = until - Now();
    if (left <= absl::ZeroDuration()) break;
    Sleep(std::min(left, kNap));
  }
  used_before_ = ThreadCpuSeconds();
  rested_ = Now();
}

// Pushes wait for pages, or soon will.
bool Pacer::MemoryIsShort() const {
  const PageUse use = GetPageUse();
  return use.limit != UINT64_MAX &&
         use.pages + (use.limit - std::min(use.limit, pages_before_)) / 4 >= use.limit;
}

}  // namespace recon
