#pragma once

#include <cstdint>
#include <vector>

#include "proto/control.pb.h"

namespace recon {

// Whether the completed splits of each data epoch tile [0, samples).
inline bool CompletedOnce(const CompletionsReply& reply, uint32_t data_epochs, uint64_t samples) {
  std::vector<uint64_t> next(data_epochs, 0);
  for (const Completion& completion : reply.completions()) {  // In the order of epoch and split.
    if (completion.kind() != LEASE_TRAIN) continue;
    if (completion.data_epoch() >= data_epochs || completion.begin() != next[completion.data_epoch()])
      return false;
    next[completion.data_epoch()] = completion.end();
  }
  for (const uint64_t end : next) {
    if (end != samples) return false;
  }
  return true;
}

}  // namespace recon
