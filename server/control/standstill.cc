#include "server/control/standstill.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/base/shown_time.h"

namespace recon {
namespace {

// Of those whose pushes are waited for so many are named.
constexpr size_t kNamedMax = 8;

std::string AboutSnapshot(const JobNeeds& needs) {
  std::string about = "a snapshot";
  if (!needs.snapshot_directory.empty()) absl::StrAppend(&about, " in ", needs.snapshot_directory);
  if (needs.log.full) {
    absl::StrAppend(&about, " that makes room in the push log, which has ", needs.log.disk_bytes,
                    " bytes of its ", needs.log.budget_bytes);
  }
  if (needs.snapshot_takes > absl::ZeroDuration()) {
    absl::StrAppend(&about, ", under way for ", ShownSeconds(needs.snapshot_takes));
  }
  const std::string& error = needs.snapshot_error;
  if (!error.empty()) absl::StrAppend(&about, ", and the last one failed: ", error);
  return about;
}

std::string AboutWorkers(const JobNeeds& needs) {
  if (needs.begun && needs.workers_alive > 0) return "";
  if (needs.begun) return "a worker: none is alive";
  if (needs.workers_alive >= needs.workers_min) return "";
  if (needs.workers_min <= 1) return "a worker: none has come yet";
  return absl::StrCat("workers: ", needs.workers_alive, " of the ", needs.workers_min,
                      " that it begins with (--workers-min) are there");
}

std::string AboutPushes(const JobNeeds& needs) {
  std::vector<JobNeeds::Holder> holders;
  for (const JobNeeds::Holder& holder : needs.holders) {
    if (holder.awaited) holders.push_back(holder);
  }
  if (holders.empty()) holders = needs.holders;
  if (holders.empty()) return absl::StrCat("the ", needs.workers_alive, " workers there are to take work");
  const size_t all = holders.size();
  holders.resize(std::min(all, kNamedMax));
  const auto show = [](std::string* text, const JobNeeds::Holder& holder) {
    absl::StrAppend(text, holder.worker, " (", holder.leases, " leases, heard of ",
                    absl::FormatDuration(absl::Trunc(holder.silence, absl::Milliseconds(1))), " ago)");
  };
  return absl::StrCat("a push of ", absl::StrJoin(holders, ", ", show),
                      all > kNamedMax ? absl::StrCat(" and ", all - kNamedMax, " others") : "");
}

}  // namespace

bool StandstillWatch::Note(uint64_t progress, Expected expected, absl::Time now) {
  idle_.Note(progress, now);
  if (expected != expected_) stall_.Reset();
  expected_ = expected;
  return expected != Expected::kNothing && stall_.Note(progress, now);
}

absl::Duration StandstillWatch::Standing(absl::Time now) const {
  return expected_ == Expected::kToGoOn ? stall_.Standing(now) : absl::ZeroDuration();
}

absl::Duration StandstillWatch::NotBegun(absl::Time now) const {
  return expected_ == Expected::kToBegin ? stall_.Standing(now) : absl::ZeroDuration();
}

std::string StandstillWatch::Said(absl::Time now) const {
  if (const absl::Duration standing = Standing(now); standing > absl::ZeroDuration())
    return absl::StrCat("the job has not moved for ", ShownSeconds(standing));
  if (const absl::Duration waiting = NotBegun(now); waiting > absl::ZeroDuration())
    return absl::StrCat("the job has not begun for ", ShownSeconds(waiting));
  return "";
}

std::string WhatJobWaitsFor(const JobNeeds& needs) {
  std::vector<std::string> missing;
  const auto add = [&missing](std::string what) {
    if (!what.empty()) missing.push_back(std::move(what));
  };
  add(needs.missing_servers);
  add(needs.full_logs);
  if (!needs.epoch_error.empty())
    add(absl::StrCat("a new cluster epoch, and there is none: ", needs.epoch_error));
  add(AboutWorkers(needs));
  // Those of a server that is away come with it.
  const bool any = needs.workers_alive > 0;
  if (needs.lacks_values && any && needs.missing_servers.empty()) {
    add(needs.values_from.empty()
            ? "initial parameters"
            : absl::StrCat("the initial parameters, which worker ", needs.values_from, " was asked for"));
  } else if (needs.saving || needs.log.awaits_snapshot || needs.log.full) {
    add(AboutSnapshot(needs));
  }
  if (!needs.start_error.empty()) add(absl::StrCat("what it cannot begin without: ", needs.start_error));
  if (missing.empty()) missing.push_back(AboutPushes(needs));
  return absl::StrCat("it waits for ", absl::StrJoin(missing, ", and for "));
}

}  // namespace recon
