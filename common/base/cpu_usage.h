#pragma once

#include <atomic>
#include <cstdint>

namespace recon {

// CPU time of this process, all threads: what they used, and what they waited for a core while others ran.
struct CpuUsage {
  double used_seconds = 0;
  double waited_seconds = 0;  // 0 where the kernel does not say (CONFIG_SCHED_INFO).
};

// Since the process started; threads that have ended count for what they used. Thread-safe.
CpuUsage ProcessCpuUsage();

// The first of these alone, which costs nothing.
double ProcessCpuSeconds();

// CPU time of the calling thread.
double ThreadCpuSeconds();

// Adds the CPU time that its thread uses while it lives to `nanos`, which must outlive it; null: it measures
// nothing.
class ThreadCpuTimer {
 public:
  explicit ThreadCpuTimer(std::atomic<uint64_t>* nanos)
      : nanos_(nanos), before_(nanos == nullptr ? 0 : ThreadCpuSeconds()) {}
  ~ThreadCpuTimer() {
    if (nanos_ == nullptr) return;
    nanos_->fetch_add(static_cast<uint64_t>((ThreadCpuSeconds() - before_) * 1e9), std::memory_order_relaxed);
  }
  ThreadCpuTimer(const ThreadCpuTimer&) = delete;
  ThreadCpuTimer& operator=(const ThreadCpuTimer&) = delete;

 private:
  std::atomic<uint64_t>* const nanos_;
  const double before_;
};

}  // namespace recon
