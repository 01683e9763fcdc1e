#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "common/optim/apply_rules.h"
#include "common/tensor/param_layout.h"
#include "proto/config.pb.h"
#include "proto/job.pb.h"
#include "server/tuning/policy_controller.h"

namespace recon {

// How the workers of a job agree: what the settings (PolicySettings) make of the job's optimizer.
struct Policy {
  // What the server does with pushes. Its epoch and job are not set here.
  ApplyRules rules;
  // What workers are told: bound, clipping and local training of it.
  JobConfig job;
};

// --sync-period of each group, as in "conv=4". InvalidArgument for what is no such pair, and for a group
// twice.
absl::Status ParseSyncPeriods(const std::vector<std::string>& texts, PolicySettings* settings);
// InvalidArgument for groups that the model has not, or if none of its groups is in every push.
absl::Status CheckSyncPeriods(const JobConfig& job, const ParamLayout& layout);

// --grace and --step-samples, as on a command line. InvalidArgument for what is no such value.
absl::Status ParseGrace(const std::string& text, PolicySettings* settings);
absl::Status ParseStepSamples(const std::string& text, PolicySettings* settings);

// What a policy is made for.
struct PolicyBase {
  // As --optimizer and --group say: the workers' where they train on their own, the server's otherwise.
  OptimizerConfig optimizer;
  std::map<std::string, GroupPolicy> groups;
  uint32_t batch_samples = 1;
  uint32_t workers_min = 1;
};

// InvalidArgument, naming the flag, for settings that mean nothing. Empty settings are the defaults; "auto"
// is the first policy that it chooses, and the settings of the others are checked, too. Pure.
absl::StatusOr<Policy> ResolvePolicy(const PolicySettings& settings, const PolicyBase& base);

// As they are given on a command line, those that are not the default: "--sync ssp:4 --local-steps 8".
std::string PolicyFlags(const PolicySettings& settings);

// Whether they leave it to the server (--sync auto), and within which limits.
bool IsAuto(const PolicySettings& settings);
PolicyController::Limits AutoLimits(const PolicySettings& settings);
// What the user has set, for a policy that auto has chosen.
PolicySettings Chosen(const PolicySettings& settings, const PolicyController::Choice& choice);

// Puts what workers are told of it into a job's configuration.
void TellWorkers(const Policy& policy, JobConfig* job);

// A round of local steps ends with its lease: how many samples a lease has at least; 0 without local steps.
uint64_t RoundSamples(const JobConfig& job, uint32_t batch_samples);
// InvalidArgument if leases of so many samples are smaller than that, or than the rounds that auto may
// choose. The settings are those that the policy was made of.
absl::Status CheckRound(const PolicySettings& settings, const Policy& policy, uint32_t batch_samples,
                        uint32_t split_samples);

}  // namespace recon
