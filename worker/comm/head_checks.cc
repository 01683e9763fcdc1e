#include "worker/comm/head_checks.h"

#include <algorithm>
#include <cmath>

#include "absl/strings/str_cat.h"

namespace recon {
namespace {

template <typename... What>
absl::Status Wrong(const What&... what) {
  return absl::InvalidArgumentError(absl::StrCat("the head's answer cannot be: ", what...));
}

}  // namespace

absl::Status CheckJob(const JobConfig& job) {
  if (job.batch_samples() == 0) return Wrong("batches of no samples");
  if (job.split_samples() == 0 || job.eval_split_samples() == 0) return Wrong("splits of no samples");
  if (job.bound() < -1) return Wrong("a bound of ", job.bound());
  if (job.heartbeat_interval_ms() == 0) return Wrong("no time between heartbeats");
  if (!std::isfinite(job.clip_norm()) || job.clip_norm() < 0)
    return Wrong("a clip norm of ", job.clip_norm());
  if (job.has_local() && (job.local().steps() == 0 || job.local().fragments() == 0)) {
    return Wrong(job.local().steps(), " local steps in ", job.local().fragments(), " fragments");
  }
  for (const auto& [group, period] : job.sync_periods()) {
    if (period == 0) return Wrong("group ", group, " is pushed every 0 steps");
  }
  return absl::OkStatus();
}

absl::Status CheckLease(const Lease& lease, const JobConfig& job, uint64_t train_samples,
                        uint64_t test_samples) {
  const bool trains = lease.kind() == LEASE_TRAIN;
  if (!trains && lease.kind() != LEASE_EVAL) return Wrong("a lease of kind ", lease.kind());
  const uint64_t samples = trains ? train_samples : test_samples;
  if (lease.begin() >= lease.end() || lease.end() > samples) {
    return Wrong("a lease of samples ", lease.begin(), " to ", lease.end(), ", the data has ", samples);
  }
  const uint64_t split = trains ? job.split_samples() : job.eval_split_samples();
  const uint64_t splits = (lease.end() - lease.begin() + split - 1) / split;
  if (splits != std::max(1u, lease.splits())) {
    return Wrong("a lease of ", lease.splits(), " splits that are ", splits);
  }
  if (lease.data_epoch() > job.data_epochs()) {
    return Wrong("a lease of data epoch ", lease.data_epoch(), ", the job has ", job.data_epochs());
  }
  return absl::OkStatus();
}

}  // namespace recon
