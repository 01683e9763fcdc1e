#pragma once

#include <cstdint>

#include "common/base/ids.h"
#include "proto/config.pb.h"
#include "server/membership/membership.h"

namespace recon {

// How many samples a synchronous step of gradients has, whoever is there; 0: one batch of each worker.
// `fixed`: what "constant" stands for, 0 while that is not known.
uint64_t StepSamples(const JobConfig& job, uint64_t fixed);

// Of how many batches each worker's pushes are made: rounds of local steps may be as long as the worker is
// fast, and a step of a fixed number of samples is shared by those who compute.
//
// Pure; not thread-safe.
class PushSizes {
 public:
  // Looks how long a batch of the fastest worker takes. It counts until the next look.
  void NoteFastest(const Membership& membership);

  // Batches of the pushes of a member; 0: one, or as many as its own flags say. `fixed`: as above.
  uint32_t BatchesOf(WorkerId worker, const Membership& membership, const JobConfig& job,
                     uint64_t fixed) const;

 private:
  uint32_t LocalStepsOf(const Membership::Member& member, const JobConfig& job) const;

  double fastest_batch_seconds_ = 0;  // 0 if nobody has computed one.
};

}  // namespace recon
