#include "worker/training/push_schedule.h"

#include <algorithm>

#include "common/base/check.h"

namespace recon {

absl::StatusOr<PushSchedule> PushSchedule::Create(const JobConfig& job, const ParamLayout& layout) {
  PushSchedule schedule;
  const uint32_t shards = layout.shard_count();
  if (job.has_local()) {
    // A model of few shards has no more fragments.
    uint32_t fragments = std::min(std::max(1u, job.local().fragments()), shards);
    while (job.local().steps() % fragments != 0) --fragments;
    schedule.fragments_ = fragments;
    schedule.steps_ = std::max(1u, job.local().steps() / fragments);
    if (fragments == 1) return schedule;
    schedule.periods_.assign(shards, fragments);
    // Shards that lie side by side: of several servers each has some of them.
    for (uint64_t i = 0; i < shards; ++i) {
      schedule.phases_.push_back(static_cast<uint32_t>(i * fragments / shards));
    }
    return schedule;
  }
  bool any_each_time = false;
  bool all_each_time = true;
  for (const ShardPlacement& shard : layout.shards()) {
    const auto found = job.sync_periods().find(layout.groups()[shard.group]);
    const uint32_t period = found == job.sync_periods().end() ? 1 : std::max(1u, found->second);
    any_each_time |= period == 1;
    all_each_time &= period == 1;
    schedule.periods_.push_back(period);
    schedule.phases_.push_back(period - 1);
  }
  if (!any_each_time) {
    return absl::InvalidArgumentError(
        "every group has a sync period above 1: some pushes would have no shard");
  }
  if (all_each_time) return PushSchedule();
  return schedule;
}

std::vector<bool> PushSchedule::Due(uint64_t step) const {
  RECON_CHECK_EQ(periods_.size(), phases_.size());
  std::vector<bool> due(periods_.size());
  for (size_t i = 0; i < due.size(); ++i) due[i] = step % periods_[i] == phases_[i];
  return due;
}

}  // namespace recon
