#include "common/base/cpu_usage.h"

#include "catch2/catch.hpp"

namespace recon {

TEST_CASE("CPU time grows with what a process computes", "[base]") {
  const CpuUsage before = ProcessCpuUsage();
  volatile double sum = 0;
  while (ProcessCpuUsage().used_seconds - before.used_seconds < 0.05) {
    for (int i = 0; i < 100'000; ++i) sum = sum + i;
  }
  CHECK(ProcessCpuUsage().waited_seconds >= before.waited_seconds);
}

}  // namespace recon
