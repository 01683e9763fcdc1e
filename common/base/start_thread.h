#pragma once

#include <functional>
#include <thread>

#include "absl/status/status.h"

namespace recon {

// Starts a thread that runs `body`, and gives it to `*thread`, which has none. ResourceExhausted, which names
// the limits, where the machine allows no further one: for threads that serve somebody who comes, so that
// this one is refused and the process goes on. Threads without which a process is of no use are std::threads;
// a missing one ends it (ExplainMissingThreads() of machine_limits.h).
absl::Status StartThread(std::function<void()> body, std::thread* thread);

}  // namespace recon
