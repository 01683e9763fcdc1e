#include "common/base/cpu_usage.h"

#include <dirent.h>
#include <sys/resource.h>
#include <time.h>

#include <fstream>
#include <memory>
#include <string>

namespace recon {
namespace {

double CpuClockSeconds(clockid_t clock) {
  timespec used{};
  clock_gettime(clock, &used);
  return static_cast<double>(used.tv_sec) + 1e-9 * static_cast<double>(used.tv_nsec);
}

}  // namespace

CpuUsage ProcessCpuUsage() {
  CpuUsage usage;
  rusage used{};
  getrusage(RUSAGE_SELF, &used);
  usage.used_seconds = static_cast<double>(used.ru_utime.tv_sec + used.ru_stime.tv_sec) +
                       1e-6 * static_cast<double>(used.ru_utime.tv_usec + used.ru_stime.tv_usec);
  const std::unique_ptr<DIR, int (*)(DIR*)> threads(opendir("/proc/self/task"), closedir);
  while (const dirent* entry = threads == nullptr ? nullptr : readdir(threads.get())) {
    // Nanoseconds on a core, nanoseconds waiting for one, time slices.
    std::ifstream file(std::string("/proc/self/task/") + entry->d_name + "/schedstat");
    double ran = 0;
    double waited = 0;
    if (file >> ran >> waited) usage.waited_seconds += 1e-9 * waited;
  }
  return usage;
}

double ProcessCpuSeconds() { return CpuClockSeconds(CLOCK_PROCESS_CPUTIME_ID); }

double ThreadCpuSeconds() { return CpuClockSeconds(CLOCK_THREAD_CPUTIME_ID); }

}  // namespace recon
