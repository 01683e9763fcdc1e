#pragma once

namespace recon {

// CPU time of this process, all threads: what they used, and what they waited for a core while others ran.
struct CpuUsage {
  double used_seconds = 0;
  double waited_seconds = 0;  // 0 where the kernel does not say (CONFIG_SCHED_INFO).
};

// Since the process started; threads that have ended count for what they used. Thread-safe.
CpuUsage ProcessCpuUsage();

// CPU time of the calling thread.
double ThreadCpuSeconds();

}  // namespace recon
