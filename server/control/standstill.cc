#include "server/control/standstill.h"

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"

namespace recon {

std::string WhatJobWaitsFor(const JobNeeds& needs) {
  if (needs.missing_servers) return *needs.missing_servers;
  if (needs.log.awaits_snapshot) {
    const std::string& error = needs.snapshot_error;
    return absl::StrCat("it waits for a snapshot", error.empty() ? "" : ", and the last one failed: ", error);
  }
  if (needs.log.full) {
    return absl::StrCat("it waits for a snapshot that makes room in the push log, which has ",
                        needs.log.disk_bytes, " bytes of its ", needs.log.budget_bytes);
  }
  if (needs.workers_alive == 0) return "it waits for a worker: none is alive";
  if (needs.holders.empty()) {
    return absl::StrCat("it waits for the ", needs.workers_alive, " workers there are to take work");
  }
  const auto show = [](std::string* text, const JobNeeds::Holder& holder) {
    absl::StrAppend(text, holder.worker, " (", holder.leases, " leases, heard of ",
                    absl::FormatDuration(absl::Trunc(holder.silence, absl::Milliseconds(1))), " ago)");
  };
  return absl::StrCat("it waits for a push of ", absl::StrJoin(needs.holders, ", ", show));
}

}  // namespace recon
