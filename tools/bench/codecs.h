#pragma once

#include <cstdint>

#include "absl/status/statusor.h"
#include "nlohmann/json_fwd.hpp"

namespace recon {

struct CodecsOptions {
  uint64_t values = 25u << 20;  // FP32 values of the gradient.
  int rounds = 7;               // Medians are over these.
  double ratio = 0.01;          // Of topk and randomk.
};

// Encode and decode rates of every codec on the CPU, in GB/s of FP32 values, on one thread and on two, beside
// memcpy, a STREAM-style triad and std::nth_element in the same rounds.
absl::StatusOr<nlohmann::ordered_json> RunCodecs(const CodecsOptions& options);

}  // namespace recon
