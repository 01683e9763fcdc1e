#include "server/process/recon_server.h"
#include "server/process/certificate_series.h"

#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <filesystem>
#include <fstream>
#include <map>
#include <optional>
#include <system_error>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "common/base/clock.h"
#include "common/base/copied_bytes.h"
#include "common/base/data_lock.h"
#include "common/base/fault_point.h"
#include "common/base/host_port.h"
#include "common/base/lane.h"
#include "common/base/limits.h"
#include "common/base/log.h"
#include "common/base/mutex.h"
#include "common/base/private_file.h"
#include "common/base/process.h"
#include "common/base/shutdown_signal.h"
#include "common/base/status_macros.h"
#include "common/optim/update_rules.h"
#include "common/rpc/param_service.h"
#include "common/rpc/rpc_server.h"
#include "common/snapshot/manifest.h"
#include "common/snapshot/reader_lease.h"
#include "common/storage/local_store.h"
#include "common/storage/store_url.h"
#include "common/transport/transport.h"
#include "google/protobuf/util/message_differencer.h"
#include "server/cluster/cluster.h"
#include "server/control/control_journal.h"
#include "server/control/lane_coordinator.h"
#include "server/control/proposal.h"
#include "server/data_plane/param_server.h"
#include "server/durability/control_db.h"
#include "server/durability/log_budget.h"
#include "server/durability/push_log.h"
#include "server/durability/recovery.h"
#include "server/history/history_keeper.h"
#include "server/process/frame_listeners.h"
#include "server/process/settings_changes.h"
#include "server/process/worker_series.h"
#include "server/recovery/initial_values.h"
#include "server/recovery/log_replay.h"
#include "server/recovery/rollback.h"
#include "server/recovery/snapshot_memory.h"
#include "server/recovery/snapshot_service.h"
#include "server/recovery/state_recovery.h"
#include "server/rpc/cluster_service.h"
#include "server/rpc/collective_service.h"
#include "server/rpc/control_service.h"
#include "server/rpc/trace_service.h"

namespace recon {
namespace {

constexpr absl::Duration kTick = absl::Milliseconds(100);
constexpr absl::Duration kDrainTimeout = absl::Seconds(10);
// A store that does not answer is asked again for so long then.
constexpr absl::Duration kDrainPatience = absl::Seconds(5);
// How long after the end of a job workers may still ask for its outcome.
constexpr absl::Duration kFarewell = absl::Seconds(5);
// A control database that was lost had counted starts that no snapshot tells of; their epochs must not come
// again.
constexpr uint64_t kStartsNobodyKnowsOf = 1000;
constexpr char kIdlePayload[] = "recon/idle";

}  // namespace

// In the order of their construction; destroyed in reverse.
struct ReconServer::Parts {
  ServerFlags flags;
  std::optional<DataLock> data_lock;
  std::optional<DataLock> snapshot_lock;
  Metrics metrics;
  ConnectedProcesses connected;
  Connections connections;
  std::unique_ptr<Access> access;
  std::map<CopyReason, prometheus::Counter*> copied;  // Looked up once.
  std::unique_ptr<ObjectStore> store;
  std::unique_ptr<ControlDb> db;
  std::unique_ptr<HistoryKeeper> history;
  std::shared_ptr<WorkerSeries> worker_series;
  std::shared_ptr<CertificateSeries> certificate_series;  // With TLS.
  std::unique_ptr<Cluster> cluster;                       // With more than one server.
  std::unique_ptr<ParamServer> params;
  std::unique_ptr<ControlJournal> journal;
  std::unique_ptr<SnapshotService> snapshots;
  std::unique_ptr<LaneCoordinator> coordinator;
  std::unique_ptr<InitialValues> initial;  // Of a new job, with --from-snapshot.
  std::optional<LogEnd> replayed;
  ControlState recovered;  // From snapshot and log.
  uint64_t restored_sequence = 0;
  bool spread_anew = false;  // Over another number of servers.
  // What the first worker's script asks for: all is made anew for it.
  std::atomic<bool> begin_anew{false};
  std::vector<FlagValue> asked_for;  // Written on the control lane before that.
  // Open() stopped half way: the push log has another policy than all was made for.
  bool policy_was_lost = false;
  // Or: the rollback that all was made for cannot be done.
  bool rollback_given_up = false;
  RollbackRecord next_rollback, last_rollback;  // Without a history: none.
  std::optional<ControlState> rolled_back;      // While the snapshot after a rollback is taken.
  std::atomic<bool> goes_back{false};           // A rollback is certain to come.
  std::unique_ptr<ReaderLease> kept;            // Of the snapshot that it begins with. Rollback lane.
  std::unique_ptr<Lane> rollback_lane;
  Dashboard* dashboard = nullptr;  // Null if there is none.
  std::atomic<bool>* drain_requested = nullptr;
  absl::Duration began;  // As ParamServer::Options has it.
  FrameListeners frames;
  std::unique_ptr<ParamService> param_service;
  std::unique_ptr<TraceService> trace_service;
  std::unique_ptr<ControlService> control_service;
  std::unique_ptr<CollectiveService> collective_service;
  std::unique_ptr<ClusterService> cluster_service;
  std::unique_ptr<RpcServer> rpc;

  absl::Status Open();
  absl::Status OpenControlDb(const Manifest& before);
  absl::Status TakeProposed(const Manifest& before);
  absl::Status AdoptProposal(const RegisterRequest& request);
  absl::StatusOr<PolicySettings> PolicyInForce() const;
  absl::StatusOr<Manifest> NewestManifest() const;
  absl::Status CheckNotReplaced(const Manifest& before) const;
  absl::StatusOr<std::optional<Manifest>> Recover(const Manifest& before);
  absl::StatusOr<uint64_t> LoadHistory(const Manifest& before);
  absl::StatusOr<std::optional<Manifest>> GoBack(RollbackRecord record, const Manifest& newest);
  absl::StatusOr<RollbackReply> Rollback(const RollbackRequest& request, bool automatic);
  absl::Status OnDivergence(const DivergenceWatch::Finding& finding);
  absl::Status GoOnFromLog(const Manifest& restored);
  absl::Status CheckNoPushesInLog() const;
  absl::Status LeaveLog();
  absl::Status OpenLog(const ApplyRules& rules);
  absl::Status MakeRoomForLog(const PushLog::Options& options);
  absl::Status CheckNotBeyond(const Manifest& past) const;
  absl::Status DropUnfoundedCompletions();
  absl::Status TakeSnapshot(const std::string& reason);
  absl::Status SnapshotBeforeWork(const std::string& reason);
  CollectiveService::Options CollectiveOptions() const;
  absl::StatusOr<std::unique_ptr<Cluster>> MakeCluster(const ApplyRules& rules, const StateOwner& state,
                                                       const Manifest& before);
  void StartCluster();
  bool Synced() const { return flags.durability == ServerFlags::Durability::kSync; }
  std::string LogDirectory() const { return flags.data + "/log"; }
  // True: a rollback is to be done.
  absl::StatusOr<bool> RunUntilStopped();
  absl::Status Drain();
  absl::StatusOr<bool> EndIdle();
  void StopServing(absl::Duration timeout);
  void Stop();
  void CountCopies();
  void NoteStatus();
};

absl::Status ReconServer::Parts::Open() {
  // Flags first: a wrong one must not touch the data directory.
  const TlsFlags tls{flags.tls_cert, flags.tls_key, flags.tls_ca, flags.insecure};
  RECON_RETURN_IF_ERROR(CheckAddress("--listen", flags.listen));
  RECON_RETURN_IF_ERROR(ServerCredentialsFor(flags.listen, tls).status());
  RECON_RETURN_IF_ERROR(MakePrivateDirectory(flags.data));
  RECON_ASSIGN_OR_RETURN(DataLock data_held, DataLock::Acquire(flags.data));
  data_lock.emplace(std::move(data_held));
  Access::Options access_options;
  access_options.tls = !flags.tls_cert.empty();
  access_options.rules = flags.allow;
  access_options.tokens_file = flags.tokens;
  access_options.operator_file = std::filesystem::absolute(flags.data) / "OPERATOR_TOKEN";
  access_options.connections = &connections;
  access_options.audit_file = flags.data + "/AUDIT";
  RECON_ASSIGN_OR_RETURN(access, Access::Open(access_options));
  if (dashboard != nullptr) std::ofstream(flags.data + "/DASHBOARD") << dashboard->url() << "\n";
  // Of its own: two jobs must not collect each other's packs.
  RECON_ASSIGN_OR_RETURN(const StoreUrl snapshot_url, ParseStoreUrl(flags.snapshot_dir));
  if (snapshot_url.local()) {
    RECON_ASSIGN_OR_RETURN(DataLock snapshots_held, DataLock::Acquire(snapshot_url.path));
    snapshot_lock.emplace(std::move(snapshots_held));
    RECON_RETURN_IF_ERROR(CheckCanPublish(snapshot_url.path));
    // Ours, so that readers of other users cannot make one that we cannot look into.
    for (const char* below : {"/leases", "/pins"}) {
      RECON_RETURN_IF_ERROR(FileSystem::Local()->CreateDirectories(snapshot_url.path + below));
    }
  }
  RECON_ASSIGN_OR_RETURN(store, OpenStore(flags.snapshot_dir, /*writer=*/true));
  RECON_ASSIGN_OR_RETURN(const Manifest before, NewestManifest());
  if (before.generation() == 0 && !flags.from_snapshot.empty()) {
    RECON_ASSIGN_OR_RETURN(initial, InitialValues::Open(flags.from_snapshot, flags.from_generation));
  }
  RECON_RETURN_IF_ERROR(OpenControlDb(before));
  RECON_RETURN_IF_ERROR(TakeProposed(before));
  RECON_ASSIGN_OR_RETURN(const ServerPlace place, db->LoadPlace());
  if (place.server_id() != 0) {
    return absl::FailedPreconditionError(
        absl::StrCat("--data ", flags.data, " is that of a server with --join: a job's head needs its own"));
  }
  // Before anything is saved: a wrong --snapshot-dir must not make another job of this one.
  if (before.generation() == 0) RECON_RETURN_IF_ERROR(CheckNoPushesInLog());
  RECON_ASSIGN_OR_RETURN(const uint64_t job_id, db->JobId(before.job_id()));
  if (before.job_id() != 0 && before.job_id() != job_id) {
    return absl::FailedPreconditionError(
        absl::StrCat("--snapshot-dir ", flags.snapshot_dir, " has snapshots of job ",
                     absl::Hex(before.job_id()), ", --data ", flags.data, " is of job ", absl::Hex(job_id)));
  }
  if (!snapshot_url.local()) RECON_RETURN_IF_ERROR(CheckNotReplaced(before));
  history = std::make_unique<HistoryKeeper>(flags.data, job_id, FileSystem::Local());
  if (!flags.tensorboard.empty()) history->WriteEvents(flags.tensorboard);
  worker_series = std::make_shared<WorkerSeries>(history.get());
  metrics.Add(worker_series);
  if (!flags.tls_cert.empty()) {
    certificate_series = std::make_shared<CertificateSeries>(flags.tls_cert, flags.tls_ca);
    metrics.Add(certificate_series);
  }
  RECON_RETURN_IF_ERROR(
      store->RemoveLeftovers({"packs/", "manifests/"}));  // It is ours, as far as can be known.
  if (!snapshot_url.local() && db->created() && before.generation() != 0) {
    LogWarn(
        "--data is new: this server takes job {:x} over, from snapshot {} of {}; the one that had it ends "
        "with its "
        "next snapshot",
        job_id, before.generation(), flags.snapshot_dir);
  }
  // Or it was created by a start that came to no snapshot.
  RECON_ASSIGN_OR_RETURN(const uint64_t last_epoch, db->ClusterEpoch());
  const bool lost =
      before.has_control() && (db->created() || last_epoch >= before.cluster_epoch() + kStartsNobodyKnowsOf);
  RECON_ASSIGN_OR_RETURN(const uint64_t cluster_epoch,
                         db->NextClusterEpoch(before.cluster_epoch() + (lost ? kStartsNobodyKnowsOf : 0)));

  const PolicyBase policy_base = {flags.optimizer, flags.groups, flags.job.batch_samples(),
                                  flags.job.workers_min()};
  if (db->created()) RECON_RETURN_IF_ERROR(db->SavePolicy(before.control().policy()));
  RECON_ASSIGN_OR_RETURN(const PolicySettings settings, PolicyInForce());
  RECON_ASSIGN_OR_RETURN(const Policy policy, ResolvePolicy(settings, policy_base));
  if (flags.split_samples_by_default) {
    RECON_ASSIGN_OR_RETURN(const std::optional<JobRecord> record, db->LoadJob());
    if (record) flags.job.set_split_samples(record->split_samples());
  }
  RECON_RETURN_IF_ERROR(CheckRound(settings, policy, flags.job.batch_samples(), flags.job.split_samples()));

  ParamServer::Options options;
  options.rules = policy.rules;
  options.state = StateOf(policy.rules);
  if (options.state->planes() == 0 && before.generation() != 0) {
    // Kept while a policy is in force that does not need it.
    RECON_ASSIGN_OR_RETURN(options.state, ParseStateOwner(before.optimizer()));
  } else if (options.state->planes() == 0) {
    RECON_ASSIGN_OR_RETURN(const Policy of_flags, ResolvePolicy(flags.policy, policy_base));
    options.state = StateOf(of_flags.rules);
  }
  if (options.state->planes() > 0 && StatePlanes(policy.rules.optimizer.kind) == 0) {
    LogInfo("the state of {} is kept, and not used by the policy in force", StateName(*options.state));
  }
  options.rules.cluster_epoch = cluster_epoch;
  options.rules.job_id = job_id;
  RECON_ASSIGN_OR_RETURN(options.rules.history, LoadHistory(before));
  options.apply_threads = flags.apply_threads;
  options.refused_codecs = flags.job.refused_codecs();
  options.memory_bytes = ServerMemory();
  options.servers = flags.servers;
  options.began = began;
  if (flags.servers > 1) {
    RECON_ASSIGN_OR_RETURN(cluster, MakeCluster(options.rules, *options.state, before));
    options.followers = cluster.get();
  }
  params = std::make_unique<ParamServer>(options, &metrics);
  journal = std::make_unique<ControlJournal>(db.get(), params.get());

  SnapshotService::Options snapshot_options;
  snapshot_options.writer.keep = flags.snapshot_keep;
  snapshot_options.writer.zstd_level = flags.zstd_level;
  snapshot_options.writer.shared = !snapshot_url.local();
  snapshot_options.interval = flags.snapshot_interval;
  if (flags.durability != ServerFlags::Durability::kSnapshot)
    snapshot_options.replay_target = flags.replay_target;
  snapshot_options.memory = flags.snapshot_memory_percent / 100.0;
  snapshot_options.optimizer = StateName(params->state());
  snapshot_options.job_id = job_id;
  snapshot_options.control = [this](uint64_t sequence) -> absl::StatusOr<ControlState> {
    if (rolled_back) return *rolled_back;
    return journal->StateAt(sequence);
  };
  snapshots =
      std::make_unique<SnapshotService>(snapshot_options, params.get(), store.get(), &metrics, cluster.get());

  Coordinator::Options coordinator_options;
  coordinator_options.job = flags.job;
  coordinator_options.timeouts = {flags.suspect_after, flags.evict_after};
  coordinator_options.cluster_epoch = cluster_epoch;
  coordinator_options.connected = &connected;
  coordinator_options.job.set_history(options.rules.history);
  coordinator_options.job.set_rolls_back(flags.on_divergence == ServerFlags::OnDivergence::kRollback);
  TellWorkers(policy, &coordinator_options.job);
  coordinator_options.optimizer = OptimizerName(policy.rules.optimizer.kind);
  coordinator_options.job_id = job_id;
  coordinator_options.snapshot_dir = snapshot_url.Absolute();
  coordinator_options.keep_best = flags.snapshot_keep.best;
  coordinator_options.lease_target = flags.lease_target;
  coordinator_options.policy_base = policy_base;
  coordinator_options.policy_of_flags = flags.policy;
  coordinator_options.policy = settings;
  coordinator_options.settings = flags.agreed;
  coordinator_options.proposed = flags.proposed;
  if (flags.with_proposed) {
    coordinator_options.adopt_proposal = [this](const RegisterRequest& request) {
      return AdoptProposal(request);
    };
  }
  coordinator = std::make_unique<LaneCoordinator>(coordinator_options, params.get(), journal.get(),
                                                  snapshots.get(), cluster.get(), &metrics);
  if (cluster != nullptr) StartCluster();

  RECON_ASSIGN_OR_RETURN(const std::optional<Manifest> restored, Recover(before));
  if (rollback_given_up) return absl::OkStatus();
  if (lost) {
    RECON_ASSIGN_OR_RETURN(const PolicyRecord known, db->LoadPolicy());
    policy_was_lost = !google::protobuf::util::MessageDifferencer::Equals(known, recovered.policy);
  }
  if (policy_was_lost) return db->SavePolicy(recovered.policy);
  if (lost) {
    LogWarn("there was no control database: filled with {} workers and {} completed splits from {}",
            recovered.workers.size(), recovered.completions.size(),
            replayed && replayed->records > 0 ? "snapshot and push log" : "the snapshot");
    RECON_RETURN_IF_ERROR(
        SnapshotBeforeWork("recovered"));  // It has the new epoch, should the database go again.
  }
  RECON_RETURN_IF_ERROR(OpenLog(options.rules));
  if (!flags.settings.empty()) RECON_RETURN_IF_ERROR(NoteSettings(flags.settings, db.get()));
  // Not to come back when the flags are once more what they were. Only now: a start with wrong flags changes
  // nothing.
  if (!google::protobuf::util::MessageDifferencer::Equals(settings, flags.policy)) {
    LogInfo("the policy is the one that was set while the job ran: {}", PolicyFlags(settings));
  } else {
    RECON_RETURN_IF_ERROR(db->SavePolicy(PolicyRecord()));  // The journal tells the log, where that differs.
  }
  RECON_RETURN_IF_ERROR(journal->Start(recovered));
  absl::Status resumed;
  coordinator->lane()->RunAndWait([&] {
    coordinator->NoteRollback(last_rollback);
    resumed = coordinator->Recover(restored, Now());
  });
  RECON_RETURN_IF_ERROR(resumed);

  if (!flags.metrics_address.empty()) RECON_RETURN_IF_ERROR(metrics.Serve(flags.metrics_address));
  const RequestHandler handler = [params = params.get()](const ByteChain& request, TakenCallback taken,
                                                         Transport::Done done, RequestContext context) {
    params->Handle(request, Now(), std::move(taken), std::move(done), std::move(context));
  };
  RECON_RETURN_IF_ERROR(frames.Start(flags, tls, job_id, handler, &connected));
  coordinator->lane()->RunAndWait(
      [&] { coordinator->OfferFrames(frames.shared_memory(), frames.ucx_address()); });
  param_service = std::make_unique<ParamService>(
      handler, &connected, &connections,
      [params = params.get()](Incarnation sender) { return params->Knows(sender); });
  rollback_lane = std::make_unique<Lane>("rollback");
  trace_service = std::make_unique<TraceService>(access.get(), coordinator.get(), cluster.get());
  control_service = std::make_unique<ControlService>(
      access.get(), coordinator.get(), snapshots.get(), drain_requested,
      [this](const RollbackRequest& request, const ControlService::RollbackDone& done) {
        rollback_lane->Post([this, request, done] { done(Rollback(request, /*automatic=*/false)); });
      },
      [this](const HistoryRequest& request, ControlService::HistoryDone done) {
        history->EncodeLater(request, std::move(done));
      },
      trace_service.get());
  collective_service = std::make_unique<CollectiveService>(CollectiveOptions());
  std::vector<grpc::Service*> services = {param_service.get(), control_service.get(), trace_service.get(),
                                          collective_service.get()};
  if (cluster != nullptr) {
    cluster_service = std::make_unique<ClusterService>(access.get(), cluster.get());
    services.push_back(cluster_service.get());
  }
  RECON_ASSIGN_OR_RETURN(rpc, RpcServer::Start("--listen", flags.listen, tls, services, &connections));
  trace_service->SetAddress(rpc->address());
  NoteStatus();
  if (dashboard != nullptr) dashboard->Attach(history.get(), store.get());
  params->NoteReady();
  rpc->SetServing(true);
  RECON_RETURN_IF_ERROR(WriteOwnFile(flags.data + "/ADDRESS", rpc->address() + "\n"));
  LogInfo("listening on {}, cluster epoch {}, policy {}, optimizer {}", rpc->address(), cluster_epoch,
          PolicyFlags(settings), OptimizerName(policy.rules.optimizer.kind));
  return absl::OkStatus();
}

CollectiveService::Options ReconServer::Parts::CollectiveOptions() const {
  CollectiveService::Options options;
  options.access = access.get();
  options.connections = &connections;
  options.patience = flags.evict_after;
  if (cluster == nullptr) return options;
  options.other_servers = [cluster = cluster.get()] {
    std::vector<std::string> there;
    for (const ServerAddress& server : cluster->Addresses()) {
      if (!server.address().empty()) there.push_back(server.address());
    }
    return there;
  };
  return options;
}

absl::StatusOr<std::unique_ptr<Cluster>> ReconServer::Parts::MakeCluster(const ApplyRules& rules,
                                                                         const StateOwner& state,
                                                                         const Manifest& before) {
  Cluster::Options options;
  Assignment& assignment = options.assignment;
  assignment.set_servers(flags.servers);
  assignment.set_job_id(rules.job_id);
  *assignment.mutable_rules() = EncodeRules(rules);
  assignment.set_state(StateName(state));
  assignment.set_refused_codecs(flags.job.refused_codecs());
  assignment.set_durability(DurabilityName(flags.durability));
  assignment.set_log_segment_bytes(flags.log_segment_bytes);
  // Another process may have another working directory.
  RECON_ASSIGN_OR_RETURN(const StoreUrl snapshot_url, ParseStoreUrl(flags.snapshot_dir));
  assignment.set_snapshot_dir(snapshot_url.Absolute());
  assignment.set_zstd_level(flags.zstd_level);
  assignment.set_snapshot_keep(flags.snapshot_keep.last);
  assignment.set_snapshot_memory_percent(flags.snapshot_memory_percent);
  if (initial != nullptr) {
    RECON_ASSIGN_OR_RETURN(const StoreUrl initial_url, ParseStoreUrl(flags.from_snapshot));
    assignment.set_from_snapshot(initial_url.Absolute());
    assignment.set_from_snapshot_generation(initial->generation());
  }
  options.silence_max = flags.evict_after;
  options.replace_after = flags.replace_after;
  RECON_ASSIGN_OR_RETURN(ServerTable table, db->LoadServers());
  const auto servers = static_cast<int>(flags.servers);
  if (table.id_size() != servers) {
    table.Clear();
    // The manifest knows them, too.
    if (before.servers_size() == servers) {
      for (const ServerPart& server : before.servers()) table.add_id(server.id());
    }
  }
  return std::make_unique<Cluster>(options, table);
}

void ReconServer::Parts::StartCluster() {
  Cluster::Events events;
  events.changed = [this] { coordinator->OnServersChanged(Now()); };
  events.save = [this](const ServerTable& table) { return db->SaveServers(table); };
  cluster->Start(params.get(), coordinator->lane(), std::move(events));
}

// One that is damaged is set aside if there is a snapshot to fill a new one from.
absl::Status ReconServer::Parts::OpenControlDb(const Manifest& before) {
  const std::string directory = flags.data + "/control";
  absl::StatusOr<std::unique_ptr<ControlDb>> opened = ControlDb::Open(directory);
  if (absl::IsDataLoss(opened.status()) && before.has_control()) {
    const std::string aside = absl::StrCat(directory, ".damaged-", absl::ToUnixMillis(WallNow()));
    LogError("THE CONTROL DATABASE IS DAMAGED: {}; it is kept as {}", opened.status().message(), aside);
    std::error_code error;
    std::filesystem::rename(directory, aside, error);
    if (error) return absl::UnavailableError(absl::StrCat("rename ", directory, ": ", error.message()));
    opened = ControlDb::Open(directory);
  }
  RECON_ASSIGN_OR_RETURN(db, std::move(opened));
  return absl::OkStatus();
}

// The job goes by what its first worker asked for, where the flags say nothing.
absl::Status ReconServer::Parts::TakeProposed(const Manifest& before) {
  if (!flags.with_proposed) return absl::OkStatus();
  RECON_ASSIGN_OR_RETURN(const std::optional<JobRecord> known, db->LoadJob());
  const JobRecord& record = known ? *known : before.control().job();
  if (record.proposed().empty()) return absl::OkStatus();
  const std::string listen = flags.listen;
  RECON_ASSIGN_OR_RETURN(flags, flags.with_proposed({record.proposed().begin(), record.proposed().end()}));
  flags.listen = listen;
  return absl::OkStatus();
}

absl::Status ReconServer::Parts::AdoptProposal(const RegisterRequest& request) {
  const std::vector<FlagValue> proposed(request.proposed().begin(), request.proposed().end());
  RECON_ASSIGN_OR_RETURN(const ServerFlags merged, flags.with_proposed(proposed));
  RECON_RETURN_IF_ERROR(CheckProposal(request, merged.agreed));  // Flags that were given win.
  if (!begin_anew.load()) {
    asked_for = proposed;
    LogInfo("the job begins with the settings of {}'s script", request.name());
    begin_anew.store(true);
  }
  return absl::AbortedError("the server takes the settings of the first worker's script");  // Ask again.
}

// What was set live, unless the flags have changed since.
absl::StatusOr<PolicySettings> ReconServer::Parts::PolicyInForce() const {
  RECON_ASSIGN_OR_RETURN(const PolicyRecord record, db->LoadPolicy());
  if (!record.has_set() ||
      !google::protobuf::util::MessageDifferencer::Equals(record.flags(), flags.policy)) {
    return flags.policy;
  }
  return record.set();
}

// Of those that can be read; an empty one if there is none at all.
// A server that comes back after another has taken its place: what it has in --data is of a history that
// ended.
absl::Status ReconServer::Parts::CheckNotReplaced(const Manifest& before) const {
  if (db->created()) return absl::OkStatus();
  RECON_ASSIGN_OR_RETURN(const uint64_t ours, db->ClusterEpoch());
  if (before.cluster_epoch() <= ours) return absl::OkStatus();
  return absl::FailedPreconditionError(
      absl::StrCat("another server has taken the job over: snapshot ", before.generation(), " of ",
                   flags.snapshot_dir, " has cluster epoch ", before.cluster_epoch(), ", --data ", flags.data,
                   " knows of ", ours, ": start it with a new --data, if the other is dead"));
}

absl::StatusOr<Manifest> ReconServer::Parts::NewestManifest() const {
  const SnapshotReader reader(store.get());
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

// Of what all that is about to be recovered, and logged from now on.
absl::StatusOr<uint64_t> ReconServer::Parts::LoadHistory(const Manifest& before) {
  RECON_ASSIGN_OR_RETURN(next_rollback, db->LoadNextRollback());
  RECON_ASSIGN_OR_RETURN(last_rollback, db->LoadLastRollback());
  if (next_rollback.history() != 0 && flags.servers > 1) {
    return absl::FailedPreconditionError(absl::StrCat("a rollback ", next_rollback.reason(),
                                                      " was asked for and is to be done: start once with "
                                                      "--servers 1 before --servers ",
                                                      flags.servers));
  }
  if (next_rollback.history() != 0 && next_rollback.history() == before.history()) {
    // The server ended between the rollback's snapshot and this.
    next_rollback.set_done(true);
    next_rollback.set_end(before.sequence());
    next_rollback.set_published(before.generation());
    RECON_ASSIGN_OR_RETURN(const ControlState state, DecodeControl(before.control(), before.model()));
    RECON_RETURN_IF_ERROR(db->FinishRollback(next_rollback, state));
    last_rollback = std::exchange(next_rollback, RollbackRecord());
  }
  return std::max({before.history(), next_rollback.history(), last_rollback.history()});
}

absl::StatusOr<std::optional<Manifest>> ReconServer::Parts::GoBack(RollbackRecord record,
                                                                   const Manifest& newest) {
  const SnapshotReader reader(store.get());
  RECON_ASSIGN_OR_RETURN(const ControlState now, db->Load());
  LogWarn("rollback {}: from snapshot {}{}", record.reason(), record.generation(),
          record.done() ? ", once more: its own snapshot is damaged" : "");
  absl::StatusOr<RolledBack> back =
      RollBack(record, reader, FileSystem::Local(), LogDirectory(), newest, now, params.get());
  // What cannot be read just now is tried again by the next start.
  if (!back.ok() && !record.done() && !CannotBeRead(back.status())) {
    LogError("THE ROLLBACK {} IS GIVEN UP: {}; the job goes on from where it was", record.reason(),
             back.status().message());
    RECON_RETURN_IF_ERROR(db->DropNextRollback());
    // To go on from where it diverged leads here again.
    if (record.automatic()) return back.status();
    rollback_given_up = true;
    return std::nullopt;
  }
  RECON_RETURN_IF_ERROR(back.status());
  RECON_ASSIGN_OR_RETURN(auto carried, ReadCarried(store.get(), back->base));
  snapshots->SetCarried(std::move(carried));
  snapshots->NoteRestored(back->base);
  restored_sequence = params->sequence();
  recovered = std::move(back->control);
  RECON_FAULT_POINT("rollback.before_snapshot");
  rolled_back = recovered;
  RECON_RETURN_IF_ERROR(TakeSnapshot("rollback"));
  rolled_back.reset();
  RECON_FAULT_POINT("rollback.before_finish");
  record.set_done(true);
  record.set_end(back->end);
  record.set_published(snapshots->status().generation());
  RECON_RETURN_IF_ERROR(db->FinishRollback(record, recovered));
  LogWarn("rolled back {}: snapshot {} has that state, after sequence {} of the log", record.reason(),
          record.published(), record.end());
  last_rollback = std::exchange(record, RollbackRecord());
  next_rollback.Clear();
  return reader.ReadManifest(Generation(last_rollback.published()));
}

absl::StatusOr<RollbackReply> ReconServer::Parts::Rollback(const RollbackRequest& request, bool automatic) {
  if (cluster != nullptr) {
    return absl::FailedPreconditionError(
        absl::StrCat("a job of ", flags.servers,
                     " servers cannot go back while it runs, each has a log of its own: drain it, and begin "
                     "another from the snapshot (--from-snapshot DIR:N)"));
  }
  if (goes_back.load()) return absl::FailedPreconditionError("a rollback is under way already");
  const SnapshotReader reader(store.get());
  RollbackBasis basis;
  basis.reader = &reader;
  basis.files = FileSystem::Local();
  basis.log_directory = LogDirectory();
  basis.job_id = params->rules().job_id;
  basis.history = params->rules().history;
  basis.last_sequence = params->sequence();
  RECON_ASSIGN_OR_RETURN(basis.control, db->Load());
  RECON_ASSIGN_OR_RETURN(RollbackReply reply, PlanRollback(request, basis));
  reply.set_cluster_epoch(params->cluster_epoch());
  RollbackRecord* plan = reply.mutable_plan();
  plan->set_history(params->rules().history + 1);
  plan->set_unix_ms(absl::ToUnixMillis(WallNow()));
  plan->set_automatic(automatic);
  plan->set_automatic_count(last_rollback.automatic_count() + (automatic ? 1 : 0));
  if (request.dry_run()) return reply;
  // Until the restart, should a snapshot come before it.
  RECON_ASSIGN_OR_RETURN(kept, ReaderLease::TakeIfWritable(store.get(), Generation(plan->generation())));
  RECON_RETURN_IF_ERROR(db->SaveNextRollback(*plan));
  LogWarn("rollback {} is asked for: from snapshot {} (sequence {}); the state was at sequence {}",
          plan->reason(), plan->generation(), reply.snapshot_sequence(), reply.last_sequence());
  goes_back.store(true);
  return reply;
}

absl::Status ReconServer::Parts::OnDivergence(const DivergenceWatch::Finding& finding) {
  // Whoever goes back to the same again and again gets nowhere.
  constexpr uint32_t kAutomaticMax = 2;
  if (flags.on_divergence == ServerFlags::OnDivergence::kIgnore || goes_back.load()) return absl::OkStatus();
  const absl::StatusOr<Generation> good =
      LastGoodBefore(finding.since, SnapshotReader(store.get()), params->rules().job_id, last_rollback);
  const std::string where = good.ok() ? absl::StrCat("; the last good snapshot is ", good->value()) : "";
  if (flags.on_divergence == ServerFlags::OnDivergence::kStop) {
    return absl::AbortedError(absl::StrCat("training has diverged: ", finding.why, where,
                                           " (start with --on-divergence ignore, then reconctl rollback)"));
  }
  if (last_rollback.automatic_count() >= kAutomaticMax) {
    return absl::AbortedError(absl::StrCat("training has diverged again, after ", kAutomaticMax,
                                           " rollbacks: ", finding.why, where));
  }
  absl::Status status = good.status();
  if (good.ok()) {
    RollbackRequest request;
    request.set_generation(good->value());
    rollback_lane->RunAndWait([&] { status = Rollback(request, /*automatic=*/true).status(); });
  }
  if (status.ok() || goes_back.load()) return absl::OkStatus();
  return absl::AbortedError(
      absl::StrCat("training has diverged: ", finding.why, "; no rollback: ", status.message()));
}

absl::StatusOr<std::optional<Manifest>> ReconServer::Parts::Recover(const Manifest& before) {
  if (next_rollback.history() != 0) return GoBack(next_rollback, before);
  const SnapshotReader reader(store.get());
  std::shared_ptr<const CarriedTensors> carried;
  RECON_ASSIGN_OR_RETURN(std::optional<Manifest> newest, LoadNewest(reader, [&](const Manifest& manifest) {
                           RECON_ASSIGN_OR_RETURN(carried, ReadCarried(store.get(), manifest));
                           return LoadInto(params.get(), reader, manifest);
                         }));
  if (newest && newest->history() < last_rollback.history()) return GoBack(last_rollback, *newest);
  if (newest) {
    snapshots->SetCarried(carried);
    snapshots->NoteRestored(*newest);
    LogInfo("restored snapshot {} (sequence {}) {:.0f} ms after process start", newest->generation(),
            newest->sequence(), absl::ToDoubleMilliseconds(ProcessUptime()));
    restored_sequence = newest->sequence();
    RECON_ASSIGN_OR_RETURN(recovered, DecodeControl(newest->control(), newest->model()));
    RECON_RETURN_IF_ERROR(GoOnFromLog(*newest));
    if (newest->job_id() == 0) RECON_RETURN_IF_ERROR(CheckNotBeyond(*newest));
    RECON_RETURN_IF_ERROR(DropUnfoundedCompletions());
    RECON_RETURN_IF_ERROR(db->Merge(recovered));
    // One that no server wrote: a log of this job does not go with it.
    if (newest->job_id() == 0) RECON_RETURN_IF_ERROR(SnapshotBeforeWork("adopted"));
    // A log that goes on from here is of other shards than that snapshot's.
    if (spread_anew) RECON_RETURN_IF_ERROR(SnapshotBeforeWork("spread"));
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
  if (initial != nullptr) {
    snapshots->SetCarried(initial->carried());
    // The first worker says which model they are for.
    coordinator->BeginFrom(initial.get());
  }
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

// Splits whose pushes came after all that there is: the push log was removed, or has lost its end with the
// machine's power. (With --durability snapshot there is none.)
absl::Status ReconServer::Parts::DropUnfoundedCompletions() {
  RECON_ASSIGN_OR_RETURN(std::vector<Completion> completions, db->LoadCompletions());
  const uint64_t sequence = params->sequence();
  const auto founded = [&](const Completion& completion) {
    return completion.after_sequence() <= sequence ||
           recovered.completions.count(ControlState::KeyOf(completion)) > 0;
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
  metrics
      .Counter("recon_server_completions_lost_total", "Splits that are done again for their pushes were lost")
      .Increment(static_cast<double>(completions.size()));
  return db->DropCompletions(completions);
}

// Once the others are there, if there are any: nothing is taken before.
absl::Status ReconServer::Parts::SnapshotBeforeWork(const std::string& reason) {
  if (cluster == nullptr) return TakeSnapshot(reason);
  coordinator->RequireSnapshot();
  params->AwaitSnapshot();
  return absl::OkStatus();
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

absl::Status ReconServer::Parts::GoOnFromLog(const Manifest& restored) {
  if (ServersOf(restored) == flags.servers) {
    RECON_ASSIGN_OR_RETURN(
        replayed, ReplayAndReport(LogDirectory(), restored, Synced(), params.get(), &recovered, &metrics));
    return absl::OkStatus();
  }
  // The log is of other shards. What it has of the control state, the database has, too.
  RECON_ASSIGN_OR_RETURN(const uint64_t pushes,
                         CountLoggedPushes(FileSystem::Local(), LogDirectory(), restored.sequence() + 1));
  if (pushes > 0 || db->created()) {
    return absl::FailedPreconditionError(
        absl::StrCat("snapshot ", restored.generation(), " is of ", ServersOf(restored), " servers, and ",
                     pushes > 0 ? absl::StrCat("the push logs have ", pushes, " pushes beyond it")
                                : "the control database was lost",
                     ": start with --servers ", ServersOf(restored),
                     ", drain, and then start with --servers ", flags.servers));
  }
  LogInfo("the state of {} servers is spread over {}", ServersOf(restored), flags.servers);
  spread_anew = true;
  return RemoveLog(LogDirectory());
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
  RECON_ASSIGN_OR_RETURN(const uint64_t pushes,
                         CountLoggedPushes(FileSystem::Local(), LogDirectory(), restored_sequence + 1));
  if (cluster != nullptr && params->has_values() && pushes == 0) return RemoveLog(LogDirectory());
  if (cluster != nullptr && params->has_values()) {
    return absl::FailedPreconditionError(
        "--durability snapshot, but there are push logs: start the servers with "
        "--durability log once more, drain, and then change it");
  }
  if (params->has_values()) RECON_RETURN_IF_ERROR(TakeSnapshot("recovered"));
  return RemoveLog(LogDirectory());
}

absl::Status ReconServer::Parts::OpenLog(const ApplyRules& rules) {
  if (flags.durability == ServerFlags::Durability::kSnapshot) return LeaveLog();
  PushLog::Options options;
  options.directory = LogDirectory();
  options.sync = Synced();
  if (replayed && NeedsSnapshotFirst(*replayed, options.sync, params->sequence())) {
    RECON_RETURN_IF_ERROR(SnapshotBeforeWork("recovered"));
  }
  RECON_RETURN_IF_ERROR(
      SetLogBudget(FileSystem::Local(), flags.log_max_bytes, flags.log_segment_bytes, &options));
  RECON_RETURN_IF_ERROR(MakeRoomForLog(options));
  RECON_ASSIGN_OR_RETURN(auto log,
                         PushLog::Open(options, FileSystem::Local(), rules, params->sequence() + 1));
  params->SetLog(std::move(log));
  return absl::OkStatus();
}

// Where the disk has no room for a new segment, what a restart found gives it: its records are in a snapshot
// now.
absl::Status ReconServer::Parts::MakeRoomForLog(const PushLog::Options& options) {
  RECON_ASSIGN_OR_RETURN(const LogRoom room, LookForLogRoom(FileSystem::Local(), options));
  if (room.enough || cluster != nullptr || !params->has_values() || room.log_bytes == 0)
    return absl::OkStatus();
  LogWarn("{} has {} bytes left, and the push log {} of its {}: a snapshot takes its place", LogDirectory(),
          room.free_bytes, room.log_bytes, options.budget_bytes);
  RECON_RETURN_IF_ERROR(TakeSnapshot("log"));
  return RemoveLog(LogDirectory());
}

absl::Status ReconServer::Parts::Drain() {
  const std::string signal = ShutdownSignal::Name();
  LogInfo("draining{}{}", signal.empty() ? "" : ": ", signal);
  rpc->SetServing(false);
  // The push log has everything.
  if (flags.durability != ServerFlags::Durability::kSnapshot) store->CapPatience(kDrainPatience);
  coordinator->lane()->RunAndWait([this] { coordinator->BeginDrain(); });
  NoteStatus();
  params->BeginDrain();
  const bool others_idle = cluster == nullptr || cluster->Drain(kDrainTimeout);
  if (!params->WaitUntilIdle(kDrainTimeout) || !others_idle)
    LogWarn("some pushes were still running after {}", absl::FormatDuration(kDrainTimeout));
  absl::Status status;
  if (params->has_values()) status = TakeSnapshot("drain");
  if (cluster != nullptr && status.ok()) cluster->Shutdown();
  DrainReply outcome;
  const SnapshotStatus snapshot = snapshots->status();
  outcome.set_generation(snapshot.generation());
  outcome.set_state_root(snapshot.state_root());
  outcome.set_snapshot_error(std::string(status.message()));
  outcome.set_process(static_cast<uint32_t>(getpid()));
  outcome.set_process_namespace(ProcessNamespace());
  NoteStatus();
  control_service->FinishDrains(outcome);
  StopServing(absl::Seconds(1));
  return status;
}

absl::StatusOr<bool> ReconServer::Parts::EndIdle() {
  bool finished = false;
  int workers = 0;
  coordinator->lane()->RunAndWait([&] {
    finished = coordinator->finished();
    workers = coordinator->workers_alive();
  });
  const std::string why =
      absl::StrCat(finished ? "the job is done, and " : "", "nobody has trained it for ",
                   absl::FormatDuration(flags.idle_timeout), " (--idle-timeout); workers: ", workers);
  LogWarn("{}", why);
  const absl::Status drained = Drain();
  // Where there is a push log it has everything: no snapshot is missing that would be worth another start.
  if (!drained.ok() && flags.durability == ServerFlags::Durability::kSnapshot) return drained;
  if (finished && drained.ok()) return false;
  absl::Status status = absl::CancelledError(
      drained.ok() ? why : absl::StrCat(why, "; its last snapshot failed: ", drained.message()));
  status.SetPayload(kIdlePayload, {});
  return status;
}

void ReconServer::Parts::CountCopies() {
  for (const CopyReason reason : kCopyReasons) {
    prometheus::Counter*& counter = copied[reason];
    if (counter == nullptr) {
      counter =
          &metrics.Counter("recon_server_copied_bytes_total", "Bytes of frames that were not used in place",
                           {{"why", CopyReasonName(reason)}});
    }
    counter->Increment(static_cast<double>(CopiedBytes(reason)) - counter->Value());
  }
}

void ReconServer::Parts::NoteStatus() {
  absl::StatusOr<StatusReply> status;
  coordinator->lane()->RunAndWait([&] { status = coordinator->Status(Now()); });
  if (status.ok()) history->Note(*std::move(status), Now(), WallNow());
}

void ReconServer::Parts::StopServing(absl::Duration timeout) {
  frames.Stop();
  param_service->Close();
  collective_service->Close();
  control_service->FinishDrains(absl::UnavailableError("the server ends without a drain"));
  trace_service->Close();
  if (cluster_service != nullptr) cluster_service->Close();
  rpc->Shutdown(timeout);
}

void ReconServer::Parts::Stop() {
  if (dashboard != nullptr) dashboard->Detach();
  worker_series->Close();
  // Waiting replies first: the RPC server cannot end while they are open. Then what the lanes have posted
  // to each other, while both ends still exist.
  params->BeginDrain();
  StopServing(absl::ZeroDuration());
  coordinator->lane()->RunAndWait([this] { coordinator->BeginDrain(); });
  snapshots->Flush();
}

bool EndedIdle(const absl::Status& status) { return status.GetPayload(kIdlePayload).has_value(); }

ReconServer::ReconServer(const ServerFlags& flags) : flags_(flags) {}

ReconServer::~ReconServer() {
  if (parts_ != nullptr) parts_->Stop();
}

absl::Status ReconServer::Open(absl::Duration began) {
  if (!flags_.dashboard.empty() && dashboard_ == nullptr) {
    // First of all: who watches sees that the server recovers.
    const TlsFlags tls{flags_.tls_cert, flags_.tls_key, flags_.tls_ca, flags_.insecure};
    RECON_ASSIGN_OR_RETURN(dashboard_, Dashboard::Start(flags_.dashboard, tls));
    LogInfo("dashboard at {}", dashboard_->url());
  }
  const auto open = [&](std::unique_ptr<Parts>* parts) {
    *parts = nullptr;
    *parts = std::make_unique<Parts>();
    (*parts)->flags = flags_;
    (*parts)->drain_requested = &drain_requested_;
    (*parts)->dashboard = dashboard_.get();
    (*parts)->began = began;
    return (*parts)->Open();
  };
  std::unique_ptr<Parts> parts;
  RECON_RETURN_IF_ERROR(open(&parts));
  if (parts->policy_was_lost || parts->rollback_given_up) {
    // All that there is was made for something else than is there. Now the database knows.
    LogInfo("starting anew, {}",
            parts->policy_was_lost ? "with the policy that the push log has" : "without the rollback");
    RECON_RETURN_IF_ERROR(open(&parts));
    if (parts->policy_was_lost) return absl::InternalError("the control database does not keep the policy");
  }
  parts_ = std::move(parts);
  address_ = parts_->rpc->address();
  if (absl::EndsWith(flags_.listen, ":0")) flags_.listen = address_;
  return absl::OkStatus();
}

absl::StatusOr<std::unique_ptr<ReconServer>> ReconServer::Start(const ServerFlags& flags) {
  std::unique_ptr<ReconServer> server(new ReconServer(flags));
  RECON_RETURN_IF_ERROR(server->Open(absl::ZeroDuration()));
  return server;
}

void ReconServer::RequestDrain() { drain_requested_.store(true); }

absl::Status ReconServer::RunUntilStopped() {
  while (true) {
    RECON_ASSIGN_OR_RETURN(const bool goes_back, parts_->RunUntilStopped());
    if (!goes_back) return absl::OkStatus();
    if (parts_->begin_anew.load()) {
      // Nothing is lost: the job has not begun.
      RECON_ASSIGN_OR_RETURN(flags_, parts_->flags.with_proposed(parts_->asked_for));
      flags_.listen = address_;
    }
    const absl::Duration began = ProcessUptime();
    parts_->Stop();
    parts_ = nullptr;
    RECON_RETURN_IF_ERROR(Open(began));
  }
}

absl::StatusOr<bool> ReconServer::Parts::RunUntilStopped() {
  while (!ShutdownSignal::Wait(kTick) && !drain_requested->load()) {
    // What it has acknowledged is safe; the rest is for the next start to decide.
    RECON_RETURN_IF_ERROR(params->log_status());
    RECON_RETURN_IF_ERROR(snapshots->taken_over());
    if (goes_back.load() || begin_anew.load()) return true;
    CountCopies();
    if (history->Due(Now())) NoteStatus();
    bool done = false;
    absl::Status failure;
    bool idle = false;
    std::optional<DivergenceWatch::Finding> divergence;
    coordinator->lane()->RunAndWait([&] {
      coordinator->Tick(Now());
      failure = coordinator->failure();
      divergence = coordinator->TakeDivergence();
      idle = flags.idle_timeout > absl::ZeroDuration() && coordinator->Idle(Now()) >= flags.idle_timeout;
      done = flags.exit_when_done && coordinator->DoneAndQuiet(Now(), kFarewell);
    });
    RECON_RETURN_IF_ERROR(failure);
    if (divergence) RECON_RETURN_IF_ERROR(OnDivergence(*divergence));
    if (done) {
      LogInfo("done");
      NoteStatus();
      if (cluster != nullptr) cluster->Shutdown();
      params->BeginDrain();
      StopServing(absl::Seconds(1));
      return false;
    }
    if (idle) return EndIdle();
  }
  RECON_RETURN_IF_ERROR(Drain());
  LogInfo("drained");
  return false;
}

}  // namespace recon
