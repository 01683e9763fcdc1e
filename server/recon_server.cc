#include "server/recon_server.h"

#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <filesystem>
#include <fstream>
#include <optional>
#include <system_error>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/clock.h"
#include "common/base/copied_bytes.h"
#include "common/base/data_lock.h"
#include "common/base/limits.h"
#include "common/base/log.h"
#include "common/base/mutex.h"
#include "common/base/shutdown_signal.h"
#include "common/base/status_macros.h"
#include "common/rpc/client_channel.h"
#include "common/shm/shm_listener.h"
#include "common/snapshot/reader_lease.h"
#include "common/storage/local_store.h"
#include "common/transport/transport.h"
#include "server/control_journal.h"
#include "server/coordinator.h"
#include "server/durability/control_db.h"
#include "server/durability/push_log.h"
#include "server/durability/recovery.h"
#include "server/log_replay.h"
#include "server/param_server.h"
#include "server/rpc/control_service.h"
#include "server/rpc/param_service.h"
#include "server/rpc/rpc_server.h"
#include "server/snapshot_service.h"

namespace recon {
namespace {

constexpr absl::Duration kTick = absl::Milliseconds(100);
constexpr absl::Duration kDrainTimeout = absl::Seconds(10);
// How long after the end of a job workers may still ask for its outcome.
constexpr absl::Duration kFarewell = absl::Seconds(5);
// A control database that was lost had counted starts that no snapshot tells of; their epochs must not come
// again.
constexpr uint64_t kStartsNobodyKnowsOf = 1000;

uint64_t PhysicalMemoryBytes() {
  return static_cast<uint64_t>(sysconf(_SC_PHYS_PAGES)) * static_cast<uint64_t>(sysconf(_SC_PAGE_SIZE));
}

// A model is defined by a snapshot as it is by the first worker.
absl::Status LoadInto(ParamServer* params, const SnapshotReader& reader, const Manifest& manifest,
                      bool parameters_only) {
  const auto layout = params->layout();
  if (layout == nullptr) {
    RECON_RETURN_IF_ERROR(params->DefineModel(manifest.model()));
  } else if (const std::string difference = ModelDifference(layout->model(), manifest.model());
             !difference.empty()) {
    return absl::DataLossError(absl::StrCat("another model: ", difference));
  }
  return params->Restore(reader, manifest, parameters_only);
}

}  // namespace

// In the order of their construction; destroyed in reverse.
struct ReconServer::Parts {
  ServerFlags flags;
  std::optional<DataLock> data_lock;
  std::optional<DataLock> snapshot_lock;
  Metrics metrics;
  std::unique_ptr<LocalStore> store;
  std::unique_ptr<ControlDb> db;
  std::unique_ptr<ParamServer> params;
  std::unique_ptr<ControlJournal> journal;
  std::unique_ptr<SnapshotService> snapshots;
  std::unique_ptr<Coordinator> coordinator;
  std::optional<LogEnd> replayed;
  ControlState recovered;  // From snapshot and log.
  std::atomic<bool> drain_requested{false};
  std::unique_ptr<ShmListener> shared_memory;
  std::unique_ptr<ParamService> param_service;
  std::unique_ptr<ControlService> control_service;
  std::unique_ptr<RpcServer> rpc;

  absl::Status Open();
  absl::Status OpenControlDb(const Manifest& before);
  absl::StatusOr<Manifest> NewestManifest() const;
  absl::StatusOr<std::optional<Manifest>> Recover();
  absl::Status ReplayLog(const Manifest& restored);
  absl::Status CheckNoPushesInLog() const;
  absl::Status LeaveLog();
  absl::Status OpenLog(const ApplyRules& rules);
  absl::Status CheckNotBeyond(const Manifest& past) const;
  absl::Status TakeSnapshot(const std::string& reason);
  std::string LogDirectory() const { return flags.data + "/log"; }
  absl::Status Drain();
  void StopServing(absl::Duration timeout);
  void CountCopies();
};

absl::Status ReconServer::Parts::Open() {
  // Flags first: a wrong one must not touch the data directory.
  const TlsFlags tls{flags.tls_cert, flags.tls_key, flags.tls_ca, flags.insecure};
  RECON_RETURN_IF_ERROR(CheckAddress("--listen", flags.listen));
  RECON_RETURN_IF_ERROR(ServerCredentialsFor(flags.listen, tls).status());
  RECON_ASSIGN_OR_RETURN(DataLock data_held, DataLock::Acquire(flags.data));
  data_lock.emplace(std::move(data_held));
  // Of its own: two jobs must not collect each other's packs.
  RECON_ASSIGN_OR_RETURN(DataLock snapshots_held, DataLock::Acquire(flags.snapshot_dir));
  snapshot_lock.emplace(std::move(snapshots_held));
  RECON_ASSIGN_OR_RETURN(store, LocalStore::Open(flags.snapshot_dir, /*writer=*/true));
  // Ours, so that readers of other users cannot make one that we cannot look into.
  for (const char* below : {"/leases", "/pins"}) {
    RECON_RETURN_IF_ERROR(FileSystem::Local()->CreateDirectories(flags.snapshot_dir + below));
  }
  RECON_ASSIGN_OR_RETURN(const Manifest before, NewestManifest());
  // Before anything is written: a wrong --snapshot-dir must not make another job of this one.
  if (before.generation() == 0) RECON_RETURN_IF_ERROR(CheckNoPushesInLog());
  RECON_RETURN_IF_ERROR(OpenControlDb(before));
  RECON_ASSIGN_OR_RETURN(const uint64_t job_id, db->JobId(before.job_id()));
  if (before.job_id() != 0 && before.job_id() != job_id) {
    return absl::FailedPreconditionError(
        absl::StrCat("--snapshot-dir ", flags.snapshot_dir, " has snapshots of job ",
                     absl::Hex(before.job_id()), ", --data ", flags.data, " is of job ", absl::Hex(job_id)));
  }
  const bool lost = db->created() && before.has_control();
  RECON_ASSIGN_OR_RETURN(const uint64_t cluster_epoch,
                         db->NextClusterEpoch(before.cluster_epoch() + (lost ? kStartsNobodyKnowsOf : 0)));

  ParamServer::Options options;
  options.rules.optimizer = flags.optimizer;
  options.rules.groups = flags.groups;
  options.rules.bound = flags.job.bound();
  options.rules.cluster_epoch = cluster_epoch;
  options.rules.job_id = job_id;
  options.lanes = flags.lanes;
  options.refused_codecs = flags.job.refused_codecs();
  options.bytes_in_flight_max = PhysicalMemoryBytes() / 2;
  options.state_bytes_max = PhysicalMemoryBytes();
  params = std::make_unique<ParamServer>(options, &metrics);
  journal = std::make_unique<ControlJournal>(db.get(), params.get());

  SnapshotService::Options snapshot_options;
  snapshot_options.writer.keep = flags.snapshot_keep;
  snapshot_options.writer.zstd_level = flags.zstd_level;
  snapshot_options.interval = flags.snapshot_interval;
  if (flags.durability != ServerFlags::Durability::kSnapshot)
    snapshot_options.replay_target = flags.replay_target;
  snapshot_options.memory = flags.snapshot_memory_percent / 100.0;
  snapshot_options.optimizer = OptimizerName(flags.optimizer.kind);
  snapshot_options.cluster_epoch = cluster_epoch;
  snapshot_options.job_id = job_id;
  snapshot_options.control = [this](uint64_t sequence) { return journal->StateAt(sequence); };
  snapshots = std::make_unique<SnapshotService>(snapshot_options, params.get(), store.get(), &metrics);

  Coordinator::Options coordinator_options;
  coordinator_options.job = flags.job;
  coordinator_options.timeouts = {flags.suspect_after, flags.evict_after};
  coordinator_options.cluster_epoch = cluster_epoch;
  coordinator_options.optimizer = OptimizerName(flags.optimizer.kind);
  coordinator = std::make_unique<Coordinator>(coordinator_options, params.get(), journal.get(),
                                              snapshots.get(), &metrics);

  RECON_ASSIGN_OR_RETURN(const std::optional<Manifest> restored, Recover());
  if (lost) {
    spdlog::warn("there was no control database: filled with {} workers and {} completed splits from {}",
                 recovered.workers.size(), recovered.completions.size(),
                 replayed && replayed->records > 0 ? "snapshot and push log" : "the snapshot");
    RECON_RETURN_IF_ERROR(TakeSnapshot("recovered"));  // It has the new epoch, should the database go again.
  }
  RECON_RETURN_IF_ERROR(OpenLog(options.rules));
  RECON_RETURN_IF_ERROR(journal->Start(recovered));
  absl::Status resumed;
  coordinator->lane()->RunAndWait([&] { resumed = coordinator->Recover(restored); });
  RECON_RETURN_IF_ERROR(resumed);

  if (!flags.metrics_address.empty()) RECON_RETURN_IF_ERROR(metrics.Serve(flags.metrics_address));
  const RequestHandler handler = [params = params.get()](const ByteChain& request, TakenCallback taken,
                                                         Transport::Done done) {
    params->Handle(request, Now(), std::move(taken), std::move(done));
  };
  if (flags.shared_memory && tls.cert.empty()) {
    const std::string name = absl::StrCat("recon-", absl::Hex(job_id, absl::kZeroPad16));
    absl::StatusOr<std::unique_ptr<ShmListener>> listener = ShmListener::Start(name, handler);
    if (listener.ok()) {
      shared_memory = *std::move(listener);
      coordinator->lane()->RunAndWait([&] { coordinator->OfferSharedMemory(name); });
    } else {
      spdlog::warn("workers on this machine use the network: {}", listener.status().message());
    }
  }
  param_service = std::make_unique<ParamService>(handler);
  control_service = std::make_unique<ControlService>(coordinator.get(), snapshots.get(), &drain_requested);
  RECON_ASSIGN_OR_RETURN(rpc,
                         RpcServer::Start(flags.listen, tls, {param_service.get(), control_service.get()}));
  std::ofstream(flags.data + "/ADDRESS") << rpc->address() << "\n";
  spdlog::info("listening on {}, cluster epoch {}, sync bound {}, optimizer {}", rpc->address(),
               cluster_epoch, flags.job.bound() < 0 ? "unlimited" : absl::StrCat(flags.job.bound()),
               OptimizerName(flags.optimizer.kind));
  return absl::OkStatus();
}

// One that is damaged is set aside if there is a snapshot to fill a new one from.
absl::Status ReconServer::Parts::OpenControlDb(const Manifest& before) {
  const std::string directory = flags.data + "/control";
  absl::StatusOr<std::unique_ptr<ControlDb>> opened = ControlDb::Open(directory);
  if (absl::IsDataLoss(opened.status()) && before.has_control()) {
    const std::string aside = absl::StrCat(directory, ".damaged-", absl::ToUnixMillis(Now()));
    spdlog::error("THE CONTROL DATABASE IS DAMAGED: {}; it is kept as {}", opened.status().message(), aside);
    std::error_code error;
    std::filesystem::rename(directory, aside, error);
    if (error) return absl::UnavailableError(absl::StrCat("rename ", directory, ": ", error.message()));
    opened = ControlDb::Open(directory);
  }
  RECON_ASSIGN_OR_RETURN(db, std::move(opened));
  return absl::OkStatus();
}

// Of those that can be read; an empty one if there is none at all.
absl::StatusOr<Manifest> ReconServer::Parts::NewestManifest() const {
  const SnapshotReader reader(store.get());
  RECON_ASSIGN_OR_RETURN(const std::vector<Generation> generations, reader.List());
  if (generations.empty()) return Manifest();
  absl::Status failure;
  for (auto it = generations.rbegin(); it != generations.rend(); ++it) {
    absl::StatusOr<Manifest> manifest = reader.ReadManifest(*it);
    if (manifest.ok()) return manifest;
    failure = manifest.status();
  }
  if (absl::IsFailedPrecondition(failure)) return failure;
  return absl::DataLossError(
      absl::StrCat("none of ", generations.size(), " snapshots verifies; the oldest: ", failure.message()));
}

absl::StatusOr<std::optional<Manifest>> ReconServer::Parts::Recover() {
  const SnapshotReader reader(store.get());
  RECON_ASSIGN_OR_RETURN(std::optional<Manifest> newest, LoadNewest(reader, [&](const Manifest& manifest) {
                           return LoadInto(params.get(), reader, manifest, /*parameters_only=*/false);
                         }));
  if (newest) {
    snapshots->NoteRestored(*newest);
    spdlog::info("restored snapshot {} (sequence {}) {:.0f} ms after process start", newest->generation(),
                 newest->sequence(), absl::ToDoubleMilliseconds(ProcessUptime()));
    RECON_ASSIGN_OR_RETURN(recovered, DecodeControl(newest->control(), newest->model()));
    RECON_RETURN_IF_ERROR(ReplayLog(*newest));
    if (newest->job_id() == 0) RECON_RETURN_IF_ERROR(CheckNotBeyond(*newest));
    RECON_RETURN_IF_ERROR(db->Merge(recovered));
    // One that no server wrote: a log of this job does not go with it.
    if (newest->job_id() == 0) RECON_RETURN_IF_ERROR(TakeSnapshot("adopted"));
    return newest;
  }
  RECON_ASSIGN_OR_RETURN(const std::vector<Completion> completions, db->LoadCompletions());
  if (!completions.empty()) {
    return absl::FailedPreconditionError(
        absl::StrCat(completions.size(),
                     " splits are completed, but there is no snapshot of their parameters: is "
                     "--snapshot-dir another than before?"));
  }
  // What the job or a worker's number has left there, the control database has, too.
  RECON_RETURN_IF_ERROR(LeaveLog());
  if (flags.from_snapshot.empty()) return std::nullopt;
  RECON_ASSIGN_OR_RETURN(const auto source, LocalStore::Open(flags.from_snapshot, /*writer=*/false));
  const SnapshotReader source_reader(source.get());
  RECON_ASSIGN_OR_RETURN(
      const std::optional<Manifest> found, LoadNewest(source_reader, [&](const Manifest& manifest) {
        RECON_ASSIGN_OR_RETURN(const auto lease,
                               ReaderLease::TakeIfWritable(source.get(), Generation(manifest.generation())));
        return LoadInto(params.get(), source_reader, manifest, /*parameters_only=*/true);
      }));
  if (!found)
    return absl::NotFoundError(absl::StrCat("--from-snapshot ", flags.from_snapshot, " holds no snapshot"));
  spdlog::info("initial parameters from snapshot {} of {}", found->generation(), flags.from_snapshot);
  // The new job's own first snapshot: from here on it does not need the other directory.
  RECON_RETURN_IF_ERROR(TakeSnapshot("initial"));
  return std::nullopt;
}

// A snapshot of the past, with a data directory that has gone on from it: what came between would be taken
// for done.
absl::Status ReconServer::Parts::CheckNotBeyond(const Manifest& past) const {
  RECON_ASSIGN_OR_RETURN(const std::vector<Completion> completions, db->LoadCompletions());
  size_t more = 0;
  for (const Completion& completion : completions) {
    more += recovered.completions.count(ControlState::KeyOf(completion)) == 0 ? 1 : 0;
  }
  if (more == 0 || !past.has_control()) return absl::OkStatus();
  return absl::FailedPreconditionError(absl::StrCat(
      "--data ", flags.data, " has ", more, " splits completed that the snapshot of --snapshot-dir ",
      flags.snapshot_dir, " has not: to go on from there, give it a new --data"));
}

absl::Status ReconServer::Parts::TakeSnapshot(const std::string& reason) {
  Notification taken;
  absl::Status status;
  snapshots->Take(reason, [&](const absl::StatusOr<SnapshotReply>& reply) {
    status = reply.status();
    taken.Notify();
  });
  taken.WaitForNotification();
  return status;
}

absl::Status ReconServer::Parts::ReplayLog(const Manifest& restored) {
  const absl::Time start = Now();
  RECON_ASSIGN_OR_RETURN(
      replayed, recon::ReplayLog(FileSystem::Local(), LogDirectory(), restored, params.get(), &recovered));
  const LogEnd& end = *replayed;
  if (end.records > 0) {
    spdlog::info("replayed {} records of the push log ({:.1f} MB, to sequence {}) in {:.0f} ms", end.records,
                 static_cast<double>(end.bytes) / 1e6, end.next_sequence - 1,
                 absl::ToDoubleMilliseconds(Now() - start));
  }
  if (end.records_lost > 0) {
    spdlog::error(
        "THE PUSH LOG IS DAMAGED: {}; {} records behind it cannot be applied and are kept in *.damaged{}",
        end.trailing, end.records_lost,
        flags.durability == ServerFlags::Durability::kSync
            ? ""
            : "; a power failure can do that, too, without --durability sync");
    metrics.Counter("recon_server_log_records_lost_total", "Records of a damaged push log")
        .Increment(static_cast<double>(end.records_lost));
  } else if (!end.trailing.empty()) {
    spdlog::warn("the push log ends in {}: what a crash left of a push that was not acknowledged",
                 end.trailing);
  }
  return absl::OkStatus();
}

// Without a snapshot there is nothing that a log could go on from.
absl::Status ReconServer::Parts::CheckNoPushesInLog() const {
  RECON_ASSIGN_OR_RETURN(const uint64_t pushes, CountLoggedPushes(FileSystem::Local(), LogDirectory()));
  if (pushes == 0) return absl::OkStatus();
  return absl::FailedPreconditionError(absl::StrCat(
      LogDirectory(), " has ", pushes, " pushes that go on from a snapshot, but there is none in ",
      flags.snapshot_dir, ": is --snapshot-dir another than before?"));
}

// Once more from the log, never again: there will be none that goes on from it.
absl::Status ReconServer::Parts::LeaveLog() {
  FileSystem* files = FileSystem::Local();
  RECON_ASSIGN_OR_RETURN(std::vector<std::string> names, files->List(LogDirectory()));
  const auto other = [](const std::string& name) { return !FirstSequenceOf(name).ok(); };
  names.erase(std::remove_if(names.begin(), names.end(), other), names.end());
  if (names.empty()) return absl::OkStatus();
  if (params->has_values()) RECON_RETURN_IF_ERROR(TakeSnapshot("recovered"));
  for (const std::string& name : names) {
    RECON_RETURN_IF_ERROR(files->Remove(absl::StrCat(LogDirectory(), "/", name)));
  }
  return files->SyncDirectory(LogDirectory());
}

absl::Status ReconServer::Parts::OpenLog(const ApplyRules& rules) {
  if (flags.durability == ServerFlags::Durability::kSnapshot) return LeaveLog();
  PushLog::Options options;
  options.directory = LogDirectory();
  options.sync = flags.durability == ServerFlags::Durability::kSync;
  if (replayed && NeedsSnapshotFirst(*replayed, options.sync, params->sequence())) {
    RECON_RETURN_IF_ERROR(TakeSnapshot("recovered"));
  }
  options.segment_bytes = flags.log_segment_bytes;
  RECON_ASSIGN_OR_RETURN(auto log,
                         PushLog::Open(options, FileSystem::Local(), rules, params->sequence() + 1));
  params->SetLog(std::move(log));
  return absl::OkStatus();
}

absl::Status ReconServer::Parts::Drain() {
  spdlog::info("draining");
  coordinator->lane()->RunAndWait([this] { coordinator->BeginDrain(); });
  params->BeginDrain();
  if (!params->WaitUntilIdle(kDrainTimeout))
    spdlog::warn("some pushes were still running after {}", absl::FormatDuration(kDrainTimeout));
  absl::Status status;
  if (params->has_values()) status = TakeSnapshot("drain");
  StopServing(absl::Seconds(1));
  return status;
}

void ReconServer::Parts::CountCopies() {
  for (const CopyReason reason : kCopyReasons) {
    prometheus::Counter& counter =
        metrics.Counter("recon_server_copied_bytes_total", "Bytes of frames that were not used in place",
                        {{"why", CopyReasonName(reason)}});
    counter.Increment(static_cast<double>(CopiedBytes(reason)) - counter.Value());
  }
}

void ReconServer::Parts::StopServing(absl::Duration timeout) {
  shared_memory = nullptr;
  param_service->Close();
  rpc->Shutdown(timeout);
}

ReconServer::ReconServer(std::unique_ptr<Parts> parts) : parts_(std::move(parts)) {}

ReconServer::~ReconServer() {
  // Waiting replies first: the RPC server cannot end while they are open. Then what the lanes have posted
  // to each other, while both ends still exist.
  parts_->params->BeginDrain();
  parts_->StopServing(absl::ZeroDuration());
  parts_->coordinator->lane()->RunAndWait([this] { parts_->coordinator->BeginDrain(); });
  parts_->snapshots->Flush();
}

absl::StatusOr<std::unique_ptr<ReconServer>> ReconServer::Start(const ServerFlags& flags) {
  auto parts = std::make_unique<Parts>();
  parts->flags = flags;
  RECON_RETURN_IF_ERROR(parts->Open());
  return std::unique_ptr<ReconServer>(new ReconServer(std::move(parts)));
}

const std::string& ReconServer::address() const { return parts_->rpc->address(); }

void ReconServer::RequestDrain() { parts_->drain_requested.store(true); }

absl::Status ReconServer::RunUntilStopped() {
  Coordinator* coordinator = parts_->coordinator.get();
  while (!ShutdownSignal::Wait(kTick) && !parts_->drain_requested.load()) {
    // What it has acknowledged is safe; the rest is for the next start to decide.
    RECON_RETURN_IF_ERROR(parts_->params->log_status());
    parts_->CountCopies();
    bool done = false;
    coordinator->lane()->RunAndWait([&] {
      coordinator->Tick(Now());
      done = parts_->flags.exit_when_done && coordinator->DoneAndQuiet(Now(), kFarewell);
    });
    if (done) {
      spdlog::info("done");
      parts_->params->BeginDrain();
      parts_->StopServing(absl::Seconds(1));
      return absl::OkStatus();
    }
  }
  RECON_RETURN_IF_ERROR(parts_->Drain());
  spdlog::info("drained");
  return absl::OkStatus();
}

}  // namespace recon
