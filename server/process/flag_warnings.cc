#include "server/process/flag_warnings.h"

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/time/time.h"
#include "common/base/limits.h"

namespace recon {
namespace {

// About what a disk syncs in a second, one after the other; the completion of a split is synced.
constexpr uint64_t kSyncsPerSecond = 60;
// A job that is held to fewer samples a second by that is held to it by nothing else.
constexpr uint64_t kSlowSamplesPerSecond = 2000;
// Of a data set as people have them.
constexpr uint64_t kManySamples = 1'000'000;

void WarnOfSmallSplits(const char* flag, const char* samples, uint32_t split,
                       std::vector<std::string>* texts) {
  const uint64_t rate = split * kSyncsPerSecond;
  if (split == 0 || rate >= kSlowSamplesPerSecond) return;
  texts->push_back(
      absl::StrCat(flag, " ", split, ": each split's completion is synced to the disk, some ",
                   kSyncsPerSecond, " times a second, so that the job does about ", rate, " ", samples,
                   " samples/s at most, however many workers it has; without the flag it is not held up"));
}

}  // namespace

std::vector<std::string> FlagWarnings(const ServerFlags& flags) {
  std::vector<std::string> texts;
  const JobConfig& job = flags.job;
  WarnOfSmallSplits("--split-samples", "training", job.split_samples(), &texts);
  WarnOfSmallSplits("--eval-split-samples", "test", job.eval_split_samples(), &texts);
  const uint64_t epochs = job.data_epochs() == 0 ? 1 : job.data_epochs();
  const uint64_t samples = limits::kSplitsMax / epochs * job.split_samples();
  if (job.split_samples() > 0 && samples < kManySamples) {
    texts.push_back(absl::StrCat("--data-epochs ", epochs, " with --split-samples ", job.split_samples(),
                                 ": workers with more than ", samples,
                                 " training samples are refused, as a job has ", limits::kSplitsMax,
                                 " splits at most; --split-samples ",
                                 (kManySamples * epochs + limits::kSplitsMax - 1) / limits::kSplitsMax,
                                 " is enough for ", kManySamples));
  }
  const Membership::Timeouts& timeouts = flags.timeouts;
  if (timeouts.suspect_after >= timeouts.evict_after) {
    texts.push_back(absl::StrFormat(
        "--suspect-after %s is not shorter than --evict-after %s: no worker is shown as suspect",
        absl::FormatDuration(timeouts.suspect_after), absl::FormatDuration(timeouts.evict_after)));
  }
  if (flags.servers > 1 && flags.replace_after < timeouts.evict_after) {
    texts.push_back(absl::StrFormat(
        "--replace-after %s is shorter than --evict-after %s: a server that is only started again may lose "
        "its place",
        absl::FormatDuration(flags.replace_after), absl::FormatDuration(timeouts.evict_after)));
  }
  const LearningRateSchedule& schedule = flags.optimizer.schedule;
  if (schedule.kind == ScheduleKind::kCosine && schedule.warmup_updates >= schedule.total_updates) {
    texts.push_back(absl::StrCat(
        "--warmup-updates ", schedule.warmup_updates, " is not less than the ", schedule.total_updates,
        " updates of the cosine: the rate is near its end before it has come to the top"));
  }
  return texts;
}

}  // namespace recon
