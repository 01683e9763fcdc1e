#include "server/process/head_recovery.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/base/clock.h"
#include "common/base/fault_point.h"
#include "common/base/log.h"
#include "common/base/mutex.h"
#include "common/base/status_macros.h"
#include "common/snapshot/manifest.h"
#include "common/snapshot/snapshot_reader.h"
#include "server/durability/control_db.h"
#include "server/durability/log_budget.h"
#include "server/durability/recovery.h"
#include "server/process/recovery.h"
#include "server/recovery/log_replay.h"
#include "server/recovery/rollback.h"
#include "server/recovery/state_recovery.h"

namespace recon {

uint64_t RollbackRecords::History(const Manifest& newest) const {
  return std::max({newest.history(), next.history(), last.history()});
}

absl::StatusOr<RollbackRecords> LoadRollbacks(const Manifest& newest, const ServerProcess& process) {
  ControlDb* const db = process.db();
  RollbackRecords records;
  RECON_ASSIGN_OR_RETURN(records.next, db->rollbacks().LoadNext());
  RECON_ASSIGN_OR_RETURN(records.last, db->rollbacks().LoadLast());
  RollbackRecord& next = records.next;
  const uint32_t servers = process.flags().servers;
  const bool to_snapshot = next.sequence() == 0 && next.left_out_size() == 0;
  if (next.history() != 0 && servers > 1 && !to_snapshot) {
    return absl::FailedPreconditionError(absl::StrCat("a rollback ", next.reason(),
                                                      " was asked for and is to be done: start once with "
                                                      "--servers 1 before --servers ",
                                                      servers));
  }
  RollbackRecord& last = records.last;
  if (last.history() != 0 && !last.done() && last.history() <= newest.history()) {
    // The head ended between that snapshot and this.
    last.set_done(true);
    last.set_published(newest.generation());
    RECON_RETURN_IF_ERROR(db->rollbacks().SaveLast(last));
  }
  if (next.history() != 0 && next.history() == newest.history()) {
    // The server ended between the rollback's snapshot and this.
    next.set_done(true);
    next.set_end(newest.sequence());
    next.set_published(newest.generation());
    RECON_ASSIGN_OR_RETURN(const ControlState state, DecodeControl(newest.control(), newest.model()));
    RECON_RETURN_IF_ERROR(db->rollbacks().Finish(next, state));
    records.last = std::exchange(next, RollbackRecord());
  }
  return records;
}

absl::Status TakeSnapshot(const std::string& reason, SnapshotService* snapshots) {
  Notification taken;
  absl::Status status;
  snapshots->Take(reason, [&](const absl::StatusOr<SnapshotReply>& reply) {
    status = reply.status();
    taken.Notify();
  });
  taken.WaitForNotification();
  return status;
}

absl::StatusOr<std::optional<Manifest>> HeadRecovery::Recover(const Manifest& newest) {
  if (rollbacks_.next.history() != 0) return GoBack(rollbacks_.next, newest);
  std::shared_ptr<const CarriedTensors> carried;
  bool rollback_again = false;
  RecoveryOptions options;
  options.servers = process_.flags().servers;
  options.synced = synced();
  options.before_load = [&](const Manifest& manifest) -> absl::Status {
    RECON_ASSIGN_OR_RETURN(carried, ReadCarried(process_.store().get(), manifest));
    return absl::OkStatus();
  };
  options.restored = [&](const Manifest& snapshot) -> absl::StatusOr<bool> {
    rollback_again = snapshot.history() < rollbacks_.last.history();
    if (rollback_again) return false;
    return NoteRestored(snapshot, carried);
  };
  options.leave_log = [&](const Manifest& snapshot) { return SpreadAnew(snapshot); };
  RECON_ASSIGN_OR_RETURN(const bool has_log, HasLog(FileSystem::Local(), process_.log_directory()));
  RECON_ASSIGN_OR_RETURN(Recovered recovered, recon::Recover(options, TargetOf(&process_), &control_));
  replayed_ = recovered.replayed;
  if (!recovered.snapshot) return BeginNewJob();
  const Manifest& snapshot = *recovered.snapshot;
  if (rollback_again) return GoBack(rollbacks_.last, snapshot);
  if (snapshot.job_id() == 0) RECON_RETURN_IF_ERROR(CheckNotBeyond(snapshot));
  place_.lost = recovered.replayed && (!has_log || recovered.replayed->records_lost > 0);
  RECON_RETURN_IF_ERROR(DropUnfoundedCompletions());
  if (parts_.cluster != nullptr) RECON_RETURN_IF_ERROR(NoteLost());
  RECON_RETURN_IF_ERROR(process_.db()->Merge(control_));
  // A snapshot that no server wrote: a log of this job does not go with it.
  if (snapshot.job_id() == 0) RECON_RETURN_IF_ERROR(SnapshotBeforeWork("adopted"));
  // A log that goes on from here is of other shards than that snapshot's.
  if (spread_anew_) RECON_RETURN_IF_ERROR(SnapshotBeforeWork("spread"));
  return std::move(recovered.snapshot);
}

absl::StatusOr<bool> HeadRecovery::NoteRestored(const Manifest& snapshot,
                                                std::shared_ptr<const CarriedTensors> carried) {
  parts_.snapshots->SetCarried(std::move(carried));
  parts_.snapshots->NoteRestored(snapshot);
  LogInfo("restored snapshot {} (sequence {}) {:.0f} ms after process start", snapshot.generation(),
          snapshot.sequence(), absl::ToDoubleMilliseconds(ProcessUptime()));
  restored_sequence_ = snapshot.sequence();
  place_.generation = snapshot.generation();
  RECON_ASSIGN_OR_RETURN(control_, DecodeControl(snapshot.control(), snapshot.model()));
  return true;
}

absl::StatusOr<std::optional<Manifest>> HeadRecovery::BeginNewJob() {
  RECON_ASSIGN_OR_RETURN(const std::vector<Completion> completions, process_.db()->LoadCompletions());
  if (!completions.empty()) {
    return absl::FailedPreconditionError(
        absl::StrCat(completions.size(),
                     " splits are completed, but there is no snapshot of their parameters: is "
                     "--snapshot-dir another than before?"));
  }
  // What the job or a worker's number has left there, the control database has, too.
  RECON_RETURN_IF_ERROR(LeaveLog());
  if (parts_.initial != nullptr) {
    parts_.snapshots->SetCarried(parts_.initial->carried());
    // The first worker says which model they are for.
    parts_.coordinator->BeginFrom(parts_.initial);
  }
  return std::nullopt;
}

absl::StatusOr<std::optional<Manifest>> HeadRecovery::GoBack(RollbackRecord record, const Manifest& newest) {
  const SnapshotReader reader(process_.store().get());
  ControlDb* const db = process_.db();
  if (parts_.cluster != nullptr && record.done()) {
    return absl::DataLossError(absl::StrCat(
        "snapshot ", record.published(), ", in which the job of ", process_.flags().servers,
        " servers went back, is damaged, and so are those since: begin another job from snapshot ",
        newest.generation(), " (--from-snapshot ", process_.flags().snapshots.directory, ":",
        newest.generation(), ")"));
  }
  RECON_ASSIGN_OR_RETURN(const ControlState now, db->Load());
  LogWarn("rollback {}: from snapshot {}{}", record.reason(), record.generation(),
          record.done() ? ", once more: its own snapshot is damaged" : "");
  absl::StatusOr<RolledBack> back =
      RollBack(record, reader, FileSystem::Local(), process_.log_directory(), newest, now, process_.params());
  // What cannot be read just now is tried again by the next start. Of several servers some may have gone
  // back.
  if (!back.ok() && parts_.cluster == nullptr && !record.done() && !CannotBeRead(back.status())) {
    LogError("THE ROLLBACK {} IS GIVEN UP: {}; the job goes on from where it was", record.reason(),
             back.status().message());
    RECON_RETURN_IF_ERROR(db->rollbacks().DropNext());
    // To go on from where it diverged leads here again.
    if (record.automatic()) return back.status();
    rollback_given_up_ = true;
    return std::nullopt;
  }
  RECON_RETURN_IF_ERROR(back.status());
  RECON_ASSIGN_OR_RETURN(auto carried, ReadCarried(process_.store().get(), back->base));
  parts_.snapshots->SetCarried(std::move(carried));
  parts_.snapshots->NoteRestored(back->base);
  restored_sequence_ = process_.params()->position().sequence;
  place_.generation = back->base.generation();
  place_.went_back = true;
  control_ = back->control;
  return parts_.cluster == nullptr ? FinishGoingBack(std::move(record), *back)
                                   : GoBackWithOthers(std::move(record), *back);
}

absl::StatusOr<std::optional<Manifest>> HeadRecovery::FinishGoingBack(RollbackRecord record,
                                                                      const RolledBack& back) {
  RECON_FAULT_POINT("rollback.before_snapshot");
  rolled_back_ = control_;
  RECON_RETURN_IF_ERROR(TakeSnapshot("rollback", parts_.snapshots));
  rolled_back_.reset();
  RECON_FAULT_POINT("rollback.before_finish");
  record.set_done(true);
  record.set_end(back.end);
  record.set_published(parts_.snapshots->status().generation());
  RECON_RETURN_IF_ERROR(process_.db()->rollbacks().Finish(record, control_));
  LogWarn("rolled back {}: snapshot {} has that state, after sequence {} of the log", record.reason(),
          record.published(), record.end());
  rollbacks_.last = std::exchange(record, RollbackRecord());
  rollbacks_.next.Clear();
  return SnapshotReader(process_.store().get()).ReadManifest(Generation(rollbacks_.last.published()));
}

// Until a snapshot of the new history is there, each start does it again, and so does each other server.
absl::StatusOr<std::optional<Manifest>> HeadRecovery::GoBackWithOthers(RollbackRecord record,
                                                                       const RolledBack& back) {
  record.set_end(back.end);
  record.set_first_step(back.first_step);
  RECON_RETURN_IF_ERROR(process_.db()->rollbacks().Finish(record, control_));
  RECON_RETURN_IF_ERROR(process_.db()->SaveLost(0));
  RECON_FAULT_POINT("rollback.before_others");
  parts_.cluster->SetWayBack({record.generation(), record.first_step(), /*count_beyond=*/false});
  rollbacks_.last = std::move(record);
  rollbacks_.next.Clear();
  RECON_RETURN_IF_ERROR(SnapshotBeforeWork("rollback"));
  return back.base;
}

absl::Status HeadRecovery::NoteWentBack(uint64_t generation) {
  RollbackRecord& last = rollbacks_.last;
  last.set_done(true);
  last.set_published(generation);
  LogWarn("gone back {}: snapshot {} has that state, on all servers", last.reason(), generation);
  return process_.db()->rollbacks().SaveLast(last);
}

// The push log is of other shards than the snapshot will have. What it has of the control state, the database
// has, too.
absl::Status HeadRecovery::SpreadAnew(const Manifest& snapshot) {
  const uint32_t servers = process_.flags().servers;
  RECON_ASSIGN_OR_RETURN(
      const uint64_t pushes,
      CountLoggedPushes(FileSystem::Local(), process_.log_directory(), snapshot.sequence() + 1));
  if (pushes > 0 || process_.db()->created()) {
    return absl::FailedPreconditionError(absl::StrCat(
        "snapshot ", snapshot.generation(), " is of ", ServersOf(snapshot), " servers, and ",
        pushes > 0 ? absl::StrCat("the push logs have ", pushes, " pushes beyond it")
                   : "the control database was lost",
        ": start with --servers ", ServersOf(snapshot), ", drain, and then start with --servers ", servers));
  }
  LogInfo("the state of {} servers is spread over {}", ServersOf(snapshot), servers);
  spread_anew_ = true;
  return RemoveLog(FileSystem::Local(), process_.log_directory());
}

// A snapshot of the past, with a data directory that has gone on from it: what came between would be taken
// for done.
absl::Status HeadRecovery::CheckNotBeyond(const Manifest& past) const {
  RECON_ASSIGN_OR_RETURN(const std::vector<Completion> completions, process_.db()->LoadCompletions());
  size_t more = 0;
  for (const Completion& completion : completions) {
    more += control_.completions.count(ControlState::KeyOf(completion)) == 0 ? 1 : 0;
  }
  if (more == 0 || !past.has_control()) return absl::OkStatus();
  return absl::FailedPreconditionError(absl::StrCat("--data ", process_.flags().data, " has ", more,
                                                    " splits completed that the snapshot of --snapshot-dir ",
                                                    process_.flags().snapshots.directory,
                                                    " has not: to go on from there, give it a new --data"));
}

// Splits whose pushes came after all that there is: the push log was removed, or has lost its end with the
// machine's power. (With --durability snapshot there is none.)
absl::Status HeadRecovery::DropUnfoundedCompletions() {
  RECON_ASSIGN_OR_RETURN(std::vector<Completion> completions, process_.db()->LoadCompletions());
  const uint64_t sequence = process_.params()->position().sequence;
  const auto founded = [&](const Completion& completion) {
    return completion.after_sequence() <= sequence ||
           control_.completions.count(ControlState::KeyOf(completion)) > 0;
  };
  completions.erase(std::remove_if(completions.begin(), completions.end(), founded), completions.end());
  if (completions.empty()) return absl::OkStatus();
  uint64_t samples = 0;
  uint64_t last = 0;
  for (const Completion& completion : completions) {
    last = std::max(last, completion.after_sequence());
    if (completion.kind() == LEASE_TRAIN) samples += completion.end() - completion.begin();
  }
  LogError(
      "PUSHES ARE LOST: snapshot and push log end at sequence {}, and {} splits were completed up to "
      "sequence {}: "
      "their {} training samples are done again",
      sequence, completions.size(), last, samples);
  process_.metrics()
      ->Counter("recon_server_completions_lost_total",
                "Splits that are done again for their pushes were lost")
      .Increment(static_cast<double>(completions.size()));
  place_.lost = true;
  return process_.db()->DropCompletions(completions);
}

// With several servers.
absl::Status HeadRecovery::NoteLost() {
  RECON_ASSIGN_OR_RETURN(const uint64_t known, process_.db()->LoadLost());
  place_.lost = place_.lost || place_.generation == known;
  RECON_RETURN_IF_ERROR(process_.db()->SaveLost(LostAt(known, place_)));
  if (!place_.lost) return absl::OkStatus();
  parts_.cluster->SetWayBack({0, 0, /*count_beyond=*/true});
  const bool has_log = process_.flags().log.durability != ServerFlags::Durability::kSnapshot;
  return has_log ? SnapshotBeforeWork("recovered") : absl::OkStatus();
}

// Once the others are there, if there are any: nothing is taken before.
absl::Status HeadRecovery::SnapshotBeforeWork(const std::string& reason) {
  if (parts_.cluster == nullptr) return TakeSnapshot(reason, parts_.snapshots);
  parts_.coordinator->RequireSnapshot();
  process_.params()->log()->AwaitSnapshot();
  return absl::OkStatus();
}

// Once more from the log, never again: there will be none that goes on from it.
absl::Status HeadRecovery::LeaveLog() {
  FileSystem* const files = FileSystem::Local();
  const std::string directory = process_.log_directory();
  RECON_ASSIGN_OR_RETURN(std::vector<std::string> names, files->List(directory));
  const auto other = [](const std::string& name) { return !FirstSequenceOf(name).ok(); };
  names.erase(std::remove_if(names.begin(), names.end(), other), names.end());
  if (names.empty()) return absl::OkStatus();
  RECON_ASSIGN_OR_RETURN(const uint64_t pushes, CountLoggedPushes(files, directory, restored_sequence_ + 1));
  const bool has_values = process_.params()->has_values();
  if (parts_.cluster != nullptr && has_values && pushes == 0) return RemoveLog(files, directory);
  if (parts_.cluster != nullptr && has_values) {
    return absl::FailedPreconditionError(
        "--durability snapshot, but there are push logs: start the servers with "
        "--durability log once more, drain, and then change it");
  }
  if (has_values) RECON_RETURN_IF_ERROR(TakeSnapshot("recovered", parts_.snapshots));
  return RemoveLog(files, directory);
}

absl::Status HeadRecovery::OpenLog(const ApplyRules& rules) {
  const ServerFlags& flags = process_.flags();
  if (flags.log.durability == ServerFlags::Durability::kSnapshot) return LeaveLog();
  if (replayed_ && NeedsSnapshotFirst(*replayed_, synced(), process_.params()->position().sequence)) {
    RECON_RETURN_IF_ERROR(SnapshotBeforeWork("recovered"));
  }
  RECON_ASSIGN_OR_RETURN(const PushLog::Options options,
                         process_.MakeLogOptions(synced(), flags.log.segment_bytes));
  RECON_RETURN_IF_ERROR(MakeRoomForLog(options));
  return process_.StartLog(options, rules);
}

// Where the disk has no room for a new segment, what a restart found gives it: its records are in a snapshot
// now.
absl::Status HeadRecovery::MakeRoomForLog(const PushLog::Options& options) {
  RECON_ASSIGN_OR_RETURN(const LogRoom room, LookForLogRoom(FileSystem::Local(), options));
  if (room.enough || parts_.cluster != nullptr || !process_.params()->has_values() || room.log_bytes == 0)
    return absl::OkStatus();
  LogWarn("{} has {} bytes left, and the push log {} of its {}: a snapshot takes its place",
          options.directory, room.free_bytes, room.log_bytes, options.budget_bytes);
  RECON_RETURN_IF_ERROR(TakeSnapshot("log", parts_.snapshots));
  return RemoveLog(FileSystem::Local(), options.directory);
}

}  // namespace recon
