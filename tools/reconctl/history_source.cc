#include "tools/reconctl/history_source.h"

#include <algorithm>
#include <cmath>

#include "absl/strings/str_cat.h"
#include "common/base/host_port.h"
#include "common/base/status_macros.h"
#include "common/rpc/client_channel.h"
#include "common/rpc/control_client.h"
#include "common/storage/file_system.h"
#include "server/history/history_file.h"

namespace recon {
namespace {

absl::StatusOr<JobHistory> OfDirectory(const std::string& directory) {
  absl::StatusOr<JobHistory> history = ReadHistory(FileSystem::Local(), directory);
  if (!absl::IsNotFound(history.status())) return history;
  return absl::NotFoundError(absl::StrCat(HistoryPath(directory), " is not there: is ", directory,
                                          " the --data of a server that has run?"));
}

absl::StatusOr<JobHistory> OfServer(const std::string& address, const ServerTarget& server,
                                    const std::string& worker) {
  RECON_ASSIGN_OR_RETURN(const auto channel, ConnectTo(address, server.tls));
  RECON_ASSIGN_OR_RETURN(const Caller caller, CallerFor(server.tls));
  HistoryRequest request;
  request.set_worker(worker);
  RECON_ASSIGN_OR_RETURN(const HistoryReply reply,
                         ControlClient(channel, ControlClient::kDeadline, caller).History(request));
  return reply.history();
}

}  // namespace

absl::StatusOr<JobHistory> LoadHistory(const std::string& source, const ServerTarget& server,
                                       const std::string& worker) {
  JobHistory history;
  RECON_ASSIGN_OR_RETURN(const bool directory, FileSystem::Local()->IsDirectory(source));
  if (directory) {
    RECON_ASSIGN_OR_RETURN(history, OfDirectory(source));
  } else if (CheckAddress("", source).ok()) {
    RECON_ASSIGN_OR_RETURN(history, OfServer(source, server, worker));
  } else {
    return absl::NotFoundError(absl::StrCat(source, " is neither a directory nor HOST:PORT"));
  }
  const bool found = std::any_of(history.workers().begin(), history.workers().end(),
                                 [&](const HistoryTrack& track) { return track.name() == worker; });
  if (!worker.empty() && !found)
    return absl::NotFoundError(absl::StrCat("the history of ", source, " has no series of worker ", worker));
  return history;
}

const HistorySeries* FindSeries(const HistoryTrack& track, const std::string& name) {
  for (const HistorySeries& series : track.series()) {
    if (series.name() == name) return &series;
  }
  return nullptr;
}

double LastOf(const HistoryTrack& track, const std::string& name) {
  const HistorySeries* series = FindSeries(track, name);
  for (int i = series == nullptr ? 0 : series->mean_size(); i-- > 0;) {
    if (std::isfinite(series->mean(i))) return series->mean(i);
  }
  return NAN;
}

}  // namespace recon
