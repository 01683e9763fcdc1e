#pragma once

#include <cstdint>
#include <map>
#include <string>

#include "server/store/optimizer.h"

namespace recon {

// Whatever decides what a pushed gradient does to a shard.
struct ApplyRules {
  OptimizerConfig optimizer;
  std::map<std::string, GroupPolicy> groups;
  int bound = -1;  // As StalenessGate's: 0 makes means of steps.
  // Of the process that applies them; another one begins its steps anew.
  uint64_t cluster_epoch = 1;
  uint64_t job_id = 0;  // 0: not known.

  GroupPolicy PolicyOf(const std::string& group) const {
    const auto found = groups.find(group);
    return found == groups.end() ? GroupPolicy() : found->second;
  }
};

}  // namespace recon
