#pragma once

#include <cstdint>

#include "absl/status/status.h"
#include "proto/control.pb.h"

namespace recon {

// Whether a worker can go by what its head says: a worker outlives any head, also one that is broken or not
// the job's. InvalidArgument, which names what cannot be. Pure.
absl::Status CheckJob(const JobConfig& job);
// A lease of a worker that has so many training and test samples.
absl::Status CheckLease(const Lease& lease, const JobConfig& job, uint64_t train_samples,
                        uint64_t test_samples);

}  // namespace recon
