#pragma once

#include "absl/time/time.h"

namespace recon {

// The only place that sleeps; at once where `duration` is not positive. For work that is simulated and for
// asking again what cannot wake anybody. Everything else waits for a condition (mutex.h). Thread-safe.
void Sleep(absl::Duration duration);

}  // namespace recon
