#include "server/process/place_recovery.h"

#include <algorithm>
#include <optional>

#include "absl/strings/str_cat.h"
#include "common/base/clock.h"
#include "common/base/limits.h"
#include "common/base/log.h"
#include "common/base/status_macros.h"
#include "common/optim/update_rules.h"
#include "common/snapshot/manifest.h"
#include "common/snapshot/snapshot_reader.h"
#include "server/durability/log_reader.h"
#include "server/durability/recovery.h"
#include "server/recovery/initial_values.h"
#include "server/recovery/log_replay.h"
#include "server/recovery/log_survey.h"
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

// The newest manifest that can be read says whether it has been done.
absl::StatusOr<bool> GoesBack(const Assignment& assignment, const RecoveryTarget& target) {
  if (assignment.go_back_generation() == 0) return false;
  const SnapshotReader reader(target.store);
  const auto read = [](const Manifest&) { return absl::OkStatus(); };
  RECON_ASSIGN_OR_RETURN(const std::optional<Manifest> newest, LoadNewest(reader, read));
  return newest && newest->history() < assignment.rules().history();
}

absl::StatusOr<RecoveredPlace> GoBack(const Assignment& assignment, const RecoveryTarget& target,
                                      PartWriter* parts) {
  const SnapshotReader reader(target.store);
  RECON_ASSIGN_OR_RETURN(const Manifest snapshot,
                         reader.ReadManifest(Generation(assignment.go_back_generation())));
  const Manifest ours = ForServer(snapshot, assignment.server());
  LogSurvey log;
  RECON_ASSIGN_OR_RETURN(const auto histories, LogSurvey::Histories(target.files, target.log_directory));
  if (!histories.empty()) {
    RECON_ASSIGN_OR_RETURN(const LogEnd end,
                           log.Read(target.files, target.log_directory, histories.begin()->first));
    RECON_RETURN_IF_ERROR(SetAside(target.files, target.log_directory, end));
  }
  RECON_RETURN_IF_ERROR(LoadInto(target.params, reader, ours));
  target.params->replay()->BeginHistory(std::max(log.last(), ours.sequence()),
                                        assignment.go_back_first_step());
  parts->NoteRestored(snapshot);
  LogWarn(
      "the job goes back to snapshot {}: this server has its part of it, and leaves {} records of its log",
      snapshot.generation(), log.last() - std::min(log.last(), ours.sequence()));
  return RecoveredPlace{snapshot.generation(), /*lost=*/false, /*went_back=*/true};
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

uint64_t LostAt(uint64_t known, const RecoveredPlace& place) {
  if (place.went_back) return 0;
  return place.lost ? place.generation : known;
}

absl::StatusOr<RecoveredPlace> RecoverPlace(const Assignment& assignment, const std::string& directory,
                                            bool synced, uint64_t lost_at, const RecoveryTarget& target,
                                            PartWriter* parts) {
  RECON_ASSIGN_OR_RETURN(const bool goes_back, GoesBack(assignment, target));
  if (goes_back) return GoBack(assignment, target, parts);
  RECON_ASSIGN_OR_RETURN(const bool has_log, HasLog(target.files, target.log_directory));
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
  RecoveredPlace place;
  if (!recovered.snapshot) {
    RECON_RETURN_IF_ERROR(BeginWithoutSnapshot(assignment, directory, target));
    return place;
  }
  place.generation = recovered.snapshot->generation();
  place.lost =
      !has_log || !recovered.replayed || recovered.replayed->records_lost > 0 || place.generation == lost_at;
  if (!place.lost && !NeedsSnapshotFirst(*recovered.replayed, synced, target.params->position().sequence)) {
    target.params->log()->NoteSnapshot(FirstRecordFor(ForServer(*recovered.snapshot, assignment.server())));
  }
  return place;
}

}  // namespace recon
