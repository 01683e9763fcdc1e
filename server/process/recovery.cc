#include "server/process/recovery.h"

#include "absl/strings/str_cat.h"
#include "common/base/clock.h"
#include "common/base/log.h"
#include "common/base/status_macros.h"
#include "common/snapshot/manifest.h"
#include "common/snapshot/snapshot_reader.h"
#include "server/durability/recovery.h"
#include "server/recovery/log_replay.h"
#include "server/recovery/state_recovery.h"

namespace recon {

absl::StatusOr<Recovered> Recover(const RecoveryOptions& options, const RecoveryTarget& target,
                                  ControlState* control) {
  const SnapshotReader reader(target.store);
  Recovered recovered;
  const auto load = [&](const Manifest& manifest) {
    if (options.before_load) RECON_RETURN_IF_ERROR(options.before_load(manifest));
    return LoadInto(target.params, reader, ForServer(manifest, options.server));
  };
  RECON_ASSIGN_OR_RETURN(recovered.snapshot, LoadNewest(reader, load));
  if (!recovered.snapshot) return recovered;
  const Manifest& snapshot = *recovered.snapshot;
  if (options.restored) {
    RECON_ASSIGN_OR_RETURN(const bool go_on, options.restored(snapshot));
    if (!go_on) return recovered;
  }
  if (!options.log_is_ours || ServersOf(snapshot) != options.servers) {
    RECON_RETURN_IF_ERROR(options.leave_log(snapshot));
    return recovered;
  }
  RECON_ASSIGN_OR_RETURN(
      recovered.replayed,
      ReplayAndReport(target.files, target.log_directory, ForServer(snapshot, options.server), options.synced,
                      target.params, control, target.metrics));
  return recovered;
}

absl::Status CheckNoPushesInLog(FileSystem* files, const std::string& log_directory,
                                const std::string& directory, const std::string& hint) {
  RECON_ASSIGN_OR_RETURN(const uint64_t pushes, CountLoggedPushes(files, log_directory));
  if (pushes == 0) return absl::OkStatus();
  return absl::FailedPreconditionError(
      absl::StrCat(log_directory, " has ", pushes,
                   " pushes that go on from a snapshot, but there is none in ", directory, ": ", hint));
}

}  // namespace recon
