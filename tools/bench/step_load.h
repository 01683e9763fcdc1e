#pragma once

#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "common/base/limits.h"

namespace recon {

struct StepLoadOptions {
  std::string server;  // The head's host:port.
  std::string name;
  uint64_t parameters = 25'000'000;
  int steps = 8;
  int connections = limits::kDataConnections;  // To each server.
};

// A worker that computes nothing: pushes ready gradients in FP32 and takes the parameters back, step by step,
// as a real one does. Prints the seconds of each step as a JSON array when it is done.
absl::Status RunStepLoad(const StepLoadOptions& options);

}  // namespace recon
