#include "server/process/place_recovery.h"

#include "absl/strings/str_cat.h"
#include "common/base/clock.h"
#include "common/base/limits.h"
#include "common/base/log.h"
#include "common/base/status_macros.h"
#include "common/optim/update_rules.h"
#include "common/snapshot/manifest.h"
#include "server/recovery/initial_values.h"
#include "server/recovery/log_replay.h"
#include "server/recovery/state_recovery.h"

namespace recon {
namespace {

absl::Status BeginWithoutSnapshot(const Assignment& assignment, const std::string& directory,
                                  const RecoveryTarget& target) {
  RECON_RETURN_IF_ERROR(CheckNoPushesInLog(target.files, target.log_directory, directory,
                                           "do all servers see the same directory?"));
  RECON_RETURN_IF_ERROR(RemoveLog(target.files, target.log_directory));
  if (assignment.from_snapshot().empty()) return absl::OkStatus();
  RECON_ASSIGN_OR_RETURN(const auto initial, InitialValues::Open(assignment.from_snapshot(),
                                                                 assignment.from_snapshot_generation()));
  return initial->LoadInto(target.params);
}

}  // namespace

absl::StatusOr<ParamServer::Options> PlaceOptions(const Assignment& assignment) {
  if (assignment.server() == 0 || assignment.servers() > limits::kServersMax ||
      assignment.server() >= assignment.servers()) {
    return absl::InvalidArgumentError(
        absl::StrCat("place ", assignment.server(), " of ", assignment.servers(), " is none"));
  }
  ParamServer::Options options;
  RECON_ASSIGN_OR_RETURN(options.rules, DecodeRules(assignment.rules()));
  if (!assignment.state().empty()) {
    RECON_ASSIGN_OR_RETURN(options.state, ParseStateOwner(assignment.state()));
  }
  options.refused_codecs = assignment.refused_codecs();
  options.server = assignment.server();
  options.servers = assignment.servers();
  return options;
}

absl::Status RecoverPlace(const Assignment& assignment, const std::string& directory, bool synced,
                          const RecoveryTarget& target, PartWriter* parts) {
  RecoveryOptions options;
  options.server = assignment.server();
  options.servers = assignment.servers();
  options.synced = synced;
  options.log_is_ours = assignment.resume();
  options.restored = [&](const Manifest& snapshot) {
    LogInfo("restored its part of snapshot {} {:.0f} ms after process start", snapshot.generation(),
            absl::ToDoubleMilliseconds(ProcessUptime()));
    parts->NoteRestored(snapshot);
    return true;
  };
  options.leave_log = [&](const Manifest&) { return RemoveLog(target.files, target.log_directory); };
  ControlState none;
  RECON_ASSIGN_OR_RETURN(const Recovered recovered, Recover(options, target, &none));
  if (!recovered.snapshot) return BeginWithoutSnapshot(assignment, directory, target);
  if (recovered.replayed &&
      !NeedsSnapshotFirst(*recovered.replayed, synced, target.params->position().sequence)) {
    target.params->log()->NoteSnapshot(FirstRecordFor(ForServer(*recovered.snapshot, assignment.server())));
  }
  return absl::OkStatus();
}

}  // namespace recon
