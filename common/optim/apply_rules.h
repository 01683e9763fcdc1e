#pragma once

#include <cstdint>
#include <map>
#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "common/optim/optimizer.h"

namespace recon {

// What an asynchronous gradient counts for that was computed from parameters `staleness` updates ago.
enum class StalenessCorrection {
  kNone,     // As much as any other.
  kInverse,  // 1/staleness of it, all of it up to 1 (Zhang et al., "Staleness-aware Async-SGD", IJCAI 2016).
  // Each value the less, the further its parameter has moved since: divided by 1 + distance / C, where C is
  // as far as this gradient alone would move a parameter of the shard (root mean square). After Barkai,
  // Hakimi and Schuster, "Gap-Aware Mitigation of Gradient Staleness", ICLR 2020, whose C is a running mean.
  kGapAware,
  // Each value g plus lambda g g times how far its parameter has moved since: its first-order change, by the
  // diagonal of the outer product for the Hessian (Zheng et al., "Asynchronous Stochastic Gradient Descent
  // with Delay Compensation", ICML 2017, eq. 10).
  kDelayCompensated,
};
struct CorrectionRules {
  StalenessCorrection kind = StalenessCorrection::kNone;
  // How many of a shard's last versions are kept to compare with: those that need none have 0. A gradient of
  // an older one is taken as kInverse does.
  uint32_t versions = 0;
};
double InverseStaleness(uint64_t staleness);
// "none", "inverse", "gap-aware[:VERSIONS]" or "dc-asgd[:VERSIONS]"; InvalidArgument otherwise.
absl::StatusOr<CorrectionRules> ParseCorrection(absl::string_view text);
// InvalidArgument for a number of versions that does not go with the kind.
absl::Status CheckCorrection(const CorrectionRules& rules);

// Whatever decides what a pushed gradient does to a shard.
struct ApplyRules {
  OptimizerConfig optimizer;
  std::map<std::string, GroupPolicy> groups;
  int bound = -1;  // As StalenessGate's: 0 makes means of steps.
  CorrectionRules correction;
  bool local = false;  // Pushes say how far workers' own parameters have moved; otherwise they are gradients.
  // Of the process that applies them; another one begins its steps anew.
  uint64_t cluster_epoch = 1;
  uint64_t job_id = 0;  // 0: not known.
  // Raised by each rollback: records of one history do not go on from a snapshot of another.
  uint64_t history = 0;

  GroupPolicy PolicyOf(const std::string& group) const {
    const auto found = groups.find(group);
    return found == groups.end() ? GroupPolicy() : found->second;
  }
};

// Whose state the planes beside the parameters hold. An outer optimizer's, of movements, means something else
// than the same optimizer's of gradients.
struct StateOwner {
  OptimizerKind kind = OptimizerKind::kSgd;
  bool outer = false;

  int planes() const { return StatePlanes(kind); }
};
StateOwner StateOf(const ApplyRules& rules);
// Whether one can go on from the other's planes, as far as numbers tell.
bool Compatible(const StateOwner& a, const StateOwner& b);
// The optimizer's name, with "outer-" before it if it is one.
std::string StateName(const StateOwner& owner);
// InvalidArgument for another name.
absl::StatusOr<StateOwner> ParseStateOwner(absl::string_view name);

}  // namespace recon
