#include "server/process/job_on_disk.h"

#include <filesystem>
#include <optional>
#include <string>
#include <system_error>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/base/clock.h"
#include "common/base/log.h"
#include "common/base/status_macros.h"
#include "common/snapshot/snapshot_reader.h"
#include "common/storage/local_store.h"
#include "common/storage/store_url.h"
#include "server/durability/recovery.h"
#include "server/process/recovery.h"

namespace recon {
namespace {

// A control database that was lost had counted starts that no snapshot tells of; their epochs must not come
// again.
constexpr uint64_t kStartsNobodyKnowsOf = 1000;

// Two jobs must not collect each other's packs: each has a directory of its own.
absl::Status OpenOwnStore(const StoreUrl& url, ServerProcess* process) {
  if (url.local()) {
    RECON_RETURN_IF_ERROR(process->Lock(url.path));
    RECON_RETURN_IF_ERROR(CheckCanPublish(url.path));
    // Ours, so that readers of other users cannot make one that we cannot look into.
    for (const char* below : {"/leases", "/pins"}) {
      RECON_RETURN_IF_ERROR(FileSystem::Local()->CreateDirectories(url.path + below));
    }
  }
  return process->OpenStore(process->flags().snapshots.directory, /*writer=*/true);
}

absl::StatusOr<Manifest> NewestManifest(ObjectStore* store) {
  const SnapshotReader reader(store);
  RECON_ASSIGN_OR_RETURN(const std::vector<Generation> generations, reader.List());
  if (generations.empty()) return Manifest();
  absl::Status failure;
  for (auto it = generations.rbegin(); it != generations.rend(); ++it) {
    absl::StatusOr<Manifest> manifest = reader.ReadManifest(*it);
    if (manifest.ok()) return manifest;
    failure = manifest.status();
    if (CannotBeRead(failure) || absl::IsFailedPrecondition(failure)) return failure;
  }
  return absl::DataLossError(
      absl::StrCat("none of ", generations.size(), " snapshots verifies; the oldest: ", failure.message()));
}

// A database that is damaged is set aside if there is a snapshot to fill a new one from.
absl::Status OpenControlDb(const Manifest& newest, ServerProcess* process) {
  const absl::Status opened = process->OpenControlDb();
  if (!absl::IsDataLoss(opened) || !newest.has_control()) return opened;
  const std::string directory = process->flags().data + "/control";
  const std::string aside = absl::StrCat(directory, ".damaged-", absl::ToUnixMillis(WallNow()));
  LogError("THE CONTROL DATABASE IS DAMAGED: {}; it is kept as {}", opened.message(), aside);
  std::error_code error;
  std::filesystem::rename(directory, aside, error);
  if (error) return absl::UnavailableError(absl::StrCat("rename ", directory, ": ", error.message()));
  return process->OpenControlDb();
}

// The job goes by what its first worker asked for, where the flags say nothing.
absl::Status TakeProposed(const Manifest& newest, ServerProcess* process) {
  const ServerFlags& flags = process->flags();
  if (!flags.settings.with_proposed) return absl::OkStatus();
  RECON_ASSIGN_OR_RETURN(const std::optional<JobRecord> known, process->db()->LoadJob());
  const JobRecord& record = known ? *known : newest.control().job();
  if (record.proposed().empty()) return absl::OkStatus();
  RECON_ASSIGN_OR_RETURN(ServerFlags proposed,
                         flags.settings.with_proposed({record.proposed().begin(), record.proposed().end()}));
  proposed.listen = flags.listen;
  process->set_flags(std::move(proposed));
  return absl::OkStatus();
}

// A server that comes back after another has taken its place: what it has in --data is of a history that
// ended.
absl::Status CheckNotReplaced(const Manifest& newest, const ServerProcess& process) {
  if (process.db()->created()) return absl::OkStatus();
  RECON_ASSIGN_OR_RETURN(const uint64_t ours, process.db()->ClusterEpoch());
  if (newest.cluster_epoch() <= ours) return absl::OkStatus();
  const ServerFlags& flags = process.flags();
  return absl::FailedPreconditionError(
      absl::StrCat("another server has taken the job over: snapshot ", newest.generation(), " of ",
                   flags.snapshots.directory, " has cluster epoch ", newest.cluster_epoch(), ", --data ",
                   flags.data, " knows of ", ours, ": start it with a new --data, if the other is dead"));
}

// The job's number, once --data and --snapshot-dir are known to be of the same job. Before anything is saved:
// a wrong --snapshot-dir must not make another job of this one.
absl::StatusOr<uint64_t> CheckSameJob(const Manifest& newest, const ServerProcess& process) {
  const ServerFlags& flags = process.flags();
  RECON_ASSIGN_OR_RETURN(const ServerPlace place, process.db()->LoadPlace());
  if (place.server_id() != 0) {
    return absl::FailedPreconditionError(
        absl::StrCat("--data ", flags.data, " is that of a server with --join: a job's head needs its own"));
  }
  if (newest.generation() == 0) {
    RECON_RETURN_IF_ERROR(CheckNoPushesInLog(FileSystem::Local(), process.log_directory(),
                                             flags.snapshots.directory,
                                             "is --snapshot-dir another than before?"));
  }
  RECON_ASSIGN_OR_RETURN(const uint64_t job_id, process.db()->JobId(newest.job_id()));
  if (newest.job_id() != 0 && newest.job_id() != job_id) {
    return absl::FailedPreconditionError(
        absl::StrCat("--snapshot-dir ", flags.snapshots.directory, " has snapshots of job ",
                     absl::Hex(newest.job_id()), ", --data ", flags.data, " is of job ", absl::Hex(job_id)));
  }
  return job_id;
}

absl::Status RaiseClusterEpoch(ControlDb* db, JobOnDisk* job) {
  const Manifest& newest = job->newest;
  RECON_ASSIGN_OR_RETURN(const uint64_t last_epoch, db->ClusterEpoch());
  // Or it was created by a start that came to no snapshot.
  job->database_lost =
      newest.has_control() && (db->created() || last_epoch >= newest.cluster_epoch() + kStartsNobodyKnowsOf);
  RECON_ASSIGN_OR_RETURN(
      job->cluster_epoch,
      db->NextClusterEpoch(newest.cluster_epoch() + (job->database_lost ? kStartsNobodyKnowsOf : 0)));
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<JobOnDisk> OpenJob(ServerProcess* process) {
  const ServerFlags& flags = process->flags();
  JobOnDisk job;
  RECON_ASSIGN_OR_RETURN(const StoreUrl snapshot_url, ParseStoreUrl(flags.snapshots.directory));
  RECON_RETURN_IF_ERROR(OpenOwnStore(snapshot_url, process));
  RECON_ASSIGN_OR_RETURN(job.newest, NewestManifest(process->store().get()));
  if (job.newest.generation() == 0 && !flags.from_snapshot.directory.empty()) {
    RECON_ASSIGN_OR_RETURN(
        job.initial, InitialValues::Open(flags.from_snapshot.directory, flags.from_snapshot.generation));
  }
  RECON_RETURN_IF_ERROR(OpenControlDb(job.newest, process));
  RECON_RETURN_IF_ERROR(TakeProposed(job.newest, process));
  RECON_ASSIGN_OR_RETURN(job.job_id, CheckSameJob(job.newest, *process));
  if (!snapshot_url.local()) RECON_RETURN_IF_ERROR(CheckNotReplaced(job.newest, *process));
  // The store is ours, as far as can be known.
  RECON_RETURN_IF_ERROR(process->store()->RemoveLeftovers({"packs/", "manifests/"}));
  if (!snapshot_url.local() && process->db()->created() && job.newest.generation() != 0) {
    LogWarn(
        "--data is new: this server takes job {:x} over, from snapshot {} of {}; the one that had it ends "
        "with its "
        "next snapshot",
        job.job_id, job.newest.generation(), flags.snapshots.directory);
  }
  RECON_RETURN_IF_ERROR(RaiseClusterEpoch(process->db(), &job));
  return job;
}

}  // namespace recon
