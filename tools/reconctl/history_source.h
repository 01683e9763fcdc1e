#pragma once

#include <string>

#include "absl/status/statusor.h"
#include "proto/history.pb.h"
#include "tools/reconctl/verbs.h"

namespace recon {

// A job's history, from wherever somebody names it: a data directory (a server may run on it or not), or
// HOST:PORT of a server that runs. With `worker`, that worker's series come along. NotFound for what is
// neither, or has none.
absl::StatusOr<JobHistory> LoadHistory(const std::string& source, const ServerTarget& server,
                                       const std::string& worker);

// A series of a track by its name; null if there is none.
const HistorySeries* FindSeries(const HistoryTrack& track, const std::string& name);

// The last value of a series that is known; NaN if none is.
double LastOf(const HistoryTrack& track, const std::string& name);

}  // namespace recon
