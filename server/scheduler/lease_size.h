#pragma once

#include <cstdint>

#include "absl/time/time.h"

namespace recon {

// How many splits a worker's next lease has: as many as it computes in `target` at the speed it was last seen
// with, so that fast workers ask less often; of the last ones of a data epoch no more than half of its even
// share, so that all come to its end at about the same time (factoring: Hummel, Schonberg and Flynn,
// "Factoring: a method for scheduling parallel loops", 1992). At least 1, and 1 for a worker of whom nothing
// is known. `free_splits`: not given out yet of that epoch. `share`: what the worker gets of its speed's part
// (LeaseShareOf()).
uint32_t LeaseSplits(double samples_per_second, uint32_t split_samples, absl::Duration target,
                     uint32_t free_splits, int workers, double share = 1);

}  // namespace recon
