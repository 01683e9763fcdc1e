#include "common/base/process.h"

#include <malloc.h>
#include <sched.h>

#include "absl/synchronization/mutex.h"

namespace recon {

void TuneProcess() {
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

}  // namespace recon
