#pragma once

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "nlohmann/json.hpp"

namespace recon {

struct DataPlaneOptions {
  int rounds = 5;      // Medians are over these.
  double seconds = 2;  // Of each measurement of a round.
  std::vector<std::string> shapes = {"resnet50", "bert-base"};
  std::vector<int> workers = {1, 2, 4};
};

// Pushes and pulls beside plain TCP, bare gRPC and the bare update kernel, in one run on loopback, every part
// in a process of its own.
absl::StatusOr<nlohmann::ordered_json> RunDataPlane(const DataPlaneOptions& options);

}  // namespace recon
