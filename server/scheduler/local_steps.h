#pragma once

#include <cstddef>
#include <cstdint>

namespace recon {

// How many local steps a round of a worker has whose batches take `batch_seconds`, where those of the fastest
// take `fastest_seconds` and its rounds have `steps`: as many as it computes in the same time, at least 1
// (dynamic local updates: Liu et al., "Asynchronous Local-SGD Training for Language Modeling", 2024). `steps`
// if either time is not known.
uint32_t LocalStepsBySpeed(uint32_t steps, double batch_seconds, double fastest_seconds);

// How many batches of a step that has `batches` are the share of number `rank` of `workers`: shares differ by
// one at most, and none is empty. `rank` is below `workers`.
uint32_t BatchesOfStep(uint64_t batches, size_t workers, size_t rank);

}  // namespace recon
