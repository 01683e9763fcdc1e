#include "common/base/process.h"

#include <malloc.h>
#include <sched.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <system_error>

#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"

namespace recon {

void TuneEnvironment() {
  // A server that starts again listens on its port at once.
  setenv("UCX_TCP_CM_REUSEADDR", "y", /*overwrite=*/0);
  // Over TCP UCX 1.13 writes large messages into the other end's memory, and now and then fails an assertion
  // when one is confirmed after its connection has ended: a process would go with its peer. (openucx/ucx#4676
  // has it in an older one.) Sent otherwise, Push and PushPull over its TCP are 15 % slower.
  setenv("UCX_TCP_PUT_ENABLE", "n", /*overwrite=*/0);
}

void TuneProcess() {
  TuneEnvironment();
  // Trimming the heap after each message costs more than half of the throughput.
  mallopt(M_TRIM_THRESHOLD, 1 << 30);
  mallopt(M_TOP_PAD, 64 << 20);
  // Setting those turns off the library's own adjustment of this one: without it every encoded shard would be
  // mapped and given back page by page.
  mallopt(M_MMAP_THRESHOLD, 32 << 20);
  // Buffers are freed by other threads than those that took them: each arena more keeps its own share of
  // them.
  mallopt(M_ARENA_MAX, 2);
  // Debian's Abseil looks for lock cycles in gRPC's mutexes: 3 % of a busy server's time.
  absl::SetMutexDeadlockDetectionMode(absl::OnDeadlockCycle::kIgnore);
  // Threads hand messages on to each other. One that is woken waits until who runs is done or its slice over,
  // instead of taking the core from it in the middle of a message. Threads that begin later inherit it.
  const sched_param param{};
  if (sched_getscheduler(0) == SCHED_OTHER) (void)sched_setscheduler(0, SCHED_BATCH, &param);
}

std::string ProgramDirectory() {
  std::error_code error;
  return std::filesystem::read_symlink("/proc/self/exe", error).parent_path();
}

std::string ProcessNamespace() {
  std::string boot;
  std::error_code error;
  const std::string numbers = std::filesystem::read_symlink("/proc/self/ns/pid", error);
  if (error || !(std::ifstream("/proc/sys/kernel/random/boot_id") >> boot)) return "";
  return absl::StrCat(boot, " ", numbers);
}

}  // namespace recon
