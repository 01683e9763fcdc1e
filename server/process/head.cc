#include "server/process/head.h"

#include <filesystem>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/clock.h"
#include "common/base/hash.h"
#include "common/base/limits.h"
#include "common/base/log.h"
#include "common/base/private_file.h"
#include "common/base/secret.h"
#include "common/base/shutdown_signal.h"
#include "common/base/status_macros.h"
#include "common/optim/update_rules.h"
#include "common/rpc/caller.h"
#include "common/storage/store_url.h"
#include "google/protobuf/util/message_differencer.h"
#include "server/control/proposal.h"
#include "server/process/settings_changes.h"

namespace recon {
namespace {

using google::protobuf::util::MessageDifferencer;

constexpr absl::Duration kTick = absl::Milliseconds(100);
// How long after the end of a job workers may still ask for its outcome.
constexpr absl::Duration kFarewell = absl::Seconds(5);
constexpr size_t kPeersTokenBytes = 16;

// What was set live, unless the flags have changed since.
absl::StatusOr<PolicySettings> LoadSettings(const ControlDb& db, const PolicySettings& of_flags) {
  RECON_ASSIGN_OR_RETURN(const PolicyRecord record, db.LoadPolicy());
  if (!record.has_set() || !MessageDifferencer::Equals(record.flags(), of_flags)) return of_flags;
  return record.set();
}

}  // namespace

Head::Head(const Options& options)
    : dashboard_(options.dashboard),
      drain_requested_(options.drain_requested),
      began_(options.began),
      ending_(options.ending),
      process_(options.flags) {}

absl::StatusOr<Head::Opened> Head::Open() {
  RECON_RETURN_IF_ERROR(process_.LockData());
  RECON_RETURN_IF_ERROR(OpenAccess());
  RECON_ASSIGN_OR_RETURN(JobOnDisk job, OpenJob(&process_));
  OpenHistory(job.job_id);
  RECON_ASSIGN_OR_RETURN(PolicyInForce policy, ResolvePolicyInForce(job));
  RECON_ASSIGN_OR_RETURN(RollbackRecords rollbacks, LoadRollbacks(job.newest, process_));
  policy.rules.history = rollbacks.History(job.newest);
  RECON_RETURN_IF_ERROR(MakeParams(job, policy));
  RECON_RETURN_IF_ERROR(MakeSnapshots());
  RECON_RETURN_IF_ERROR(MakeCoordinator(policy));
  initial_ = std::move(job.initial);
  recovery_ = std::make_unique<HeadRecovery>(
      HeadRecovery::Parts{&process_, snapshots_.get(), coordinator_.get(), cluster_.get(), initial_.get()},
      std::move(rollbacks));
  RECON_ASSIGN_OR_RETURN(const Opened opened, Recover(job, policy));
  if (opened != Opened::kServes) return opened;
  RECON_RETURN_IF_ERROR(StartServing());
  LogInfo("listening on {}, cluster epoch {}, policy {}, optimizer {}", address(), job.cluster_epoch,
          PolicyFlags(policy.settings), OptimizerName(policy.rules.optimizer.kind));
  serves_ = true;
  return opened;
}

absl::Status Head::OpenAccess() {
  const ServerFlags& flags = process_.flags();
  Access::Options options;
  options.tls = !flags.tls.cert.empty();
  options.rules = flags.access.allow;
  options.crl_file = flags.tls.crl;
  options.ca_file = flags.tls.ca;
  options.names_by_certificate = flags.access.names_by_certificate;
  options.tokens_file = flags.access.tokens;
  options.directory = std::filesystem::absolute(flags.data);
  options.open = flags.access.open;
  RECON_ASSIGN_OR_RETURN(const Caller given, CallerFor(flags.tls));
  options.job_token = given.token;
  options.connections = process_.connections();
  RECON_ASSIGN_OR_RETURN(access_, Access::Open(options));
  if (dashboard_ == nullptr) return absl::OkStatus();
  return WriteOwnFile(flags.data + "/DASHBOARD", dashboard_->url() + "\n");
}

void Head::OpenHistory(uint64_t job_id) {
  const ServerFlags& flags = process_.flags();
  history_ = std::make_unique<HistoryKeeper>(flags.data, job_id, FileSystem::Local());
  if (!flags.tensorboard.empty()) history_->WriteEvents(flags.tensorboard);
  worker_series_ = std::make_shared<WorkerSeries>(history_.get());
  process_.metrics()->Add(worker_series_);
  if (flags.tls.cert.empty()) return;
  certificate_series_ = std::make_shared<CertificateSeries>(flags.tls.cert, flags.tls.ca);
  process_.metrics()->Add(certificate_series_);
}

absl::StatusOr<Head::PolicyInForce> Head::ResolvePolicyInForce(const JobOnDisk& job) {
  ServerFlags flags = process_.flags();
  ControlDb* const db = process_.db();
  PolicyInForce found;
  found.base = {flags.optimizer, flags.groups, flags.job.batch_samples(), flags.job.workers_min()};
  if (db->created()) RECON_RETURN_IF_ERROR(db->SavePolicy(job.newest.control().policy()));
  RECON_ASSIGN_OR_RETURN(found.settings, LoadSettings(*db, flags.policy));
  RECON_ASSIGN_OR_RETURN(found.policy, ResolvePolicy(found.settings, found.base));
  if (flags.split_samples_by_default) {
    RECON_ASSIGN_OR_RETURN(const std::optional<JobRecord> record, db->LoadJob());
    if (record) flags.job.set_split_samples(record->split_samples());
  }
  RECON_RETURN_IF_ERROR(
      CheckRound(found.settings, found.policy, flags.job.batch_samples(), flags.job.split_samples()));
  process_.set_flags(std::move(flags));
  found.rules = found.policy.rules;
  found.rules.cluster_epoch = job.cluster_epoch;
  found.rules.job_id = job.job_id;
  return found;
}

// Whose optimizer state there is. It is kept while a policy is in force that does not need it.
absl::StatusOr<StateOwner> Head::StateKept(const JobOnDisk& job, const PolicyInForce& policy) const {
  StateOwner state = StateOf(policy.rules);
  if (state.planes() == 0 && job.newest.generation() != 0) {
    RECON_ASSIGN_OR_RETURN(state, ParseStateOwner(job.newest.optimizer()));
  } else if (state.planes() == 0) {
    RECON_ASSIGN_OR_RETURN(const Policy of_flags, ResolvePolicy(process_.flags().policy, policy.base));
    state = StateOf(of_flags.rules);
  }
  if (state.planes() > 0 && StatePlanes(policy.rules.optimizer.kind) == 0) {
    LogInfo("the state of {} is kept, and not used by the policy in force", StateName(state));
  }
  return state;
}

absl::Status Head::MakeParams(const JobOnDisk& job, const PolicyInForce& policy) {
  ParamServer::Options options;
  options.rules = policy.rules;
  RECON_ASSIGN_OR_RETURN(options.state, StateKept(job, policy));
  options.refused_codecs = process_.flags().job.refused_codecs();
  options.servers = process_.flags().servers;
  options.began = began_;
  if (options.servers > 1) {
    RECON_ASSIGN_OR_RETURN(cluster_, MakeCluster(job, policy, *options.state));
    options.followers = cluster_.get();
  }
  process_.MakeParams(std::move(options));
  journal_ = std::make_unique<ControlJournal>(process_.db(), process_.params());
  return absl::OkStatus();
}

absl::StatusOr<std::unique_ptr<Cluster>> Head::MakeCluster(const JobOnDisk& job, const PolicyInForce& policy,
                                                           const StateOwner& state) const {
  const ServerFlags& flags = process_.flags();
  Cluster::Options options;
  Assignment& assignment = options.assignment;
  assignment.set_servers(flags.servers);
  assignment.set_job_id(policy.rules.job_id);
  *assignment.mutable_rules() = EncodeRules(policy.rules);
  assignment.set_quorum(policy.settings.quorum());
  assignment.set_state(StateName(state));
  assignment.set_refused_codecs(flags.job.refused_codecs());
  assignment.set_durability(DurabilityName(flags.log.durability));
  assignment.set_log_segment_bytes(flags.log.segment_bytes);
  // Another process may have another working directory.
  RECON_ASSIGN_OR_RETURN(const StoreUrl snapshot_url, ParseStoreUrl(flags.snapshots.directory));
  assignment.set_snapshot_dir(snapshot_url.Absolute());
  assignment.set_zstd_level(flags.snapshots.zstd_level);
  assignment.set_snapshot_keep(flags.snapshots.keep.last);
  assignment.set_snapshot_memory_percent(flags.snapshots.memory_percent);
  if (job.initial != nullptr) {
    RECON_ASSIGN_OR_RETURN(const StoreUrl initial_url, ParseStoreUrl(flags.from_snapshot.directory));
    assignment.set_from_snapshot(initial_url.Absolute());
    assignment.set_from_snapshot_generation(job.initial->generation());
  }
  options.silence_max = flags.timeouts.evict_after;
  options.replace_after = flags.replace_after;
  RECON_ASSIGN_OR_RETURN(ServerTable table, process_.db()->LoadServers());
  const auto servers = static_cast<int>(flags.servers);
  if (table.id_size() != servers) {
    table.Clear();
    // The manifest knows them, too.
    if (job.newest.servers_size() == servers) {
      for (const ServerPart& server : job.newest.servers()) table.add_id(server.id());
    }
  }
  return std::make_unique<Cluster>(options, table);
}

absl::Status Head::MakeSnapshots() {
  const ServerFlags& flags = process_.flags();
  RECON_ASSIGN_OR_RETURN(const StoreUrl snapshot_url, ParseStoreUrl(flags.snapshots.directory));
  SnapshotService::Options options;
  options.writer.keep = flags.snapshots.keep;
  options.writer.zstd_level = flags.snapshots.zstd_level;
  options.writer.shared = !snapshot_url.local();
  options.interval = flags.snapshots.interval;
  if (flags.log.durability != ServerFlags::Durability::kSnapshot)
    options.replay_target = flags.log.replay_target;
  options.memory = flags.snapshots.memory_percent / 100.0;
  options.optimizer = StateName(*process_.params()->options().state);
  options.job_id = process_.params()->rules().job_id;
  options.control = [this](uint64_t sequence) -> absl::StatusOr<ControlState> {
    if (recovery_->rolled_back()) return *recovery_->rolled_back();
    return journal_->StateAt(sequence);
  };
  snapshots_ = std::make_unique<SnapshotService>(options, process_.params(), process_.store().get(),
                                                 process_.metrics(), cluster_.get());
  return absl::OkStatus();
}

absl::Status Head::MakeCoordinator(const PolicyInForce& policy) {
  const ServerFlags& flags = process_.flags();
  RECON_ASSIGN_OR_RETURN(const StoreUrl snapshot_url, ParseStoreUrl(flags.snapshots.directory));
  Coordinator::Options options;
  options.job = flags.job;
  options.timeouts = flags.timeouts;
  options.cluster_epoch = policy.rules.cluster_epoch;
  options.connected = &connected_;
  options.job.set_history(policy.rules.history);
  options.job.set_rolls_back(flags.on_divergence == ServerFlags::OnDivergence::kRollback);
  TellWorkers(policy.policy, &options.job);
  options.optimizer = OptimizerName(policy.rules.optimizer.kind);
  options.job_id = policy.rules.job_id;
  options.snapshot_dir = snapshot_url.Absolute();
  options.peers_token = ToHex(DrawSecret(kPeersTokenBytes));
  options.keep_best = flags.snapshots.keep.best;
  options.lease_target = flags.lease_target;
  options.policy_base = policy.base;
  options.policy_of_flags = flags.policy;
  options.policy = policy.settings;
  options.settings = flags.settings.agreed;
  options.proposed = flags.settings.proposed;
  if (flags.settings.with_proposed) {
    options.adopt_proposal = [this](const RegisterRequest& request) { return AdoptProposal(request); };
  }
  coordinator_ = std::make_unique<LaneCoordinator>(options, process_.params(), journal_.get(),
                                                   snapshots_.get(), cluster_.get(), process_.metrics());
  if (cluster_ != nullptr) StartCluster();
  return absl::OkStatus();
}

void Head::StartCluster() {
  Cluster::Events events;
  events.changed = [this] { OnServersChanged(); };
  events.save = [this](const ServerTable& table) { return process_.db()->SaveServers(table); };
  cluster_->Start(process_.params(), coordinator_->lane(), std::move(events));
}

void Head::OnServersChanged() {
  const ServersState others = cluster_->state();
  if (others.complete && !others.live) {
    if (lost_disks_->GoesBack()) return;
    cluster_->NoteMixedState(lost_disks_->mixed_state());
  }
  coordinator_->OnServersChanged(Now());
}

// The snapshot that a job of several servers begins its new history with is there.
absl::Status Head::FinishGoingBack() {
  const SnapshotStatus snapshot = snapshots_->status();
  if (!recovery_->goes_back() || snapshot.published() == 0) return absl::OkStatus();
  RECON_RETURN_IF_ERROR(recovery_->NoteWentBack(snapshot.generation()));
  coordinator_->NoteRollback(recovery_->last_rollback());
  return absl::OkStatus();
}

absl::Status Head::AdoptProposal(const RegisterRequest& request) {
  const std::vector<FlagValue> proposed(request.proposed().begin(), request.proposed().end());
  RECON_ASSIGN_OR_RETURN(const ServerFlags merged, process_.flags().settings.with_proposed(proposed));
  RECON_RETURN_IF_ERROR(CheckProposal(request, merged.settings.agreed));  // Flags that were given win.
  if (!begin_anew_.load()) {
    asked_for_ = proposed;
    LogInfo("the job begins with the settings of {}'s script", request.name());
    begin_anew_.store(true);
  }
  return absl::AbortedError("the server takes the settings of the first worker's script");  // Ask again.
}

absl::StatusOr<Head::Opened> Head::Recover(const JobOnDisk& job, const PolicyInForce& policy) {
  ControlDb* const db = process_.db();
  RECON_ASSIGN_OR_RETURN(const std::optional<Manifest> restored, recovery_->Recover(job.newest));
  if (recovery_->rollback_given_up()) return Opened::kRollbackGivenUp;
  const ControlState& control = recovery_->control();
  if (job.database_lost) {
    RECON_ASSIGN_OR_RETURN(const PolicyRecord known, db->LoadPolicy());
    if (!MessageDifferencer::Equals(known, control.policy)) {
      RECON_RETURN_IF_ERROR(db->SavePolicy(control.policy));
      return Opened::kPolicyWasLost;
    }
    LogWarn("there was no control database: filled with {} workers and {} completed splits from {}",
            control.workers.size(), control.completions.size(),
            recovery_->replayed_records() ? "snapshot and push log" : "the snapshot");
    // It has the new epoch, should the database go again.
    RECON_RETURN_IF_ERROR(recovery_->SnapshotBeforeWork("recovered"));
  }
  RECON_RETURN_IF_ERROR(recovery_->OpenLog(policy.rules));
  RECON_RETURN_IF_ERROR(ResumeJob(restored, policy));
  return Opened::kServes;
}

absl::Status Head::ResumeJob(const std::optional<Manifest>& restored, const PolicyInForce& policy) {
  const ServerFlags& flags = process_.flags();
  ControlDb* const db = process_.db();
  if (!flags.settings.values.empty()) RECON_RETURN_IF_ERROR(NoteSettings(flags.settings.values, db));
  // Not to come back when the flags are once more what they were. Only now: a start with wrong flags changes
  // nothing.
  if (!MessageDifferencer::Equals(policy.settings, flags.policy)) {
    LogInfo("the policy is the one that was set while the job ran: {}", PolicyFlags(policy.settings));
  } else {
    RECON_RETURN_IF_ERROR(db->SavePolicy(PolicyRecord()));  // The journal tells the log, where that differs.
  }
  RECON_RETURN_IF_ERROR(journal_->Start(recovery_->control()));
  absl::Status resumed;
  coordinator_->lane()->RunAndWait([&] {
    coordinator_->NoteRollback(recovery_->last_rollback());
    resumed = coordinator_->Recover(restored);
  });
  return resumed;
}

absl::Status Head::StartServing() {
  process_.AcceptFrames();
  RECON_RETURN_IF_ERROR(process_.StartListeners(process_.params()->rules().job_id, &connected_));
  const FrameListeners& frames = process_.frames();
  coordinator_->lane()->RunAndWait([&] {
    coordinator_->OfferFrames(frames.shared_memory(), frames.ucx_address());
    coordinator_->NoteServing(Now(), recovery_->all_in_snapshot());
  });
  rollbacks_ = std::make_unique<Rollbacks>(&process_, cluster_.get(), recovery_->last_rollback());
  if (cluster_ != nullptr) {
    lost_disks_ =
        std::make_unique<LostDisks>(&process_, cluster_.get(), rollbacks_.get(), recovery_->place());
  }
  trace_service_ = std::make_unique<TraceService>(access_.get(), coordinator_.get(), cluster_.get());
  control_service_ = std::make_unique<ControlService>(
      access_.get(), coordinator_.get(), snapshots_.get(), drain_requested_,
      [this](const RollbackRequest& request, const ControlService::RollbackDone& done) {
        rollbacks_->Ask(request, done);
      },
      [this](const HistoryRequest& request, ControlService::HistoryDone done) {
        history_->EncodeLater(request, std::move(done));
      },
      trace_service_.get());
  std::vector<grpc::Service*> services = {control_service_.get(), trace_service_.get()};
  if (cluster_ != nullptr) {
    cluster_service_ = std::make_unique<ClusterService>(access_.get(), cluster_.get());
    services.push_back(cluster_service_.get());
  }
  RECON_RETURN_IF_ERROR(process_.StartRpc(services, CollectiveOptions(), RevokedClients::kForServices));
  trace_service_->SetAddress(address());
  NoteStatus();
  if (dashboard_ != nullptr) {
    dashboard_->Attach(history_.get(), process_.store(), [access = access_.get()](const std::string& der) {
      return access->CheckObserver(der);
    });
  }
  process_.params()->NoteReady();
  process_.rpc()->SetServing(true);
  return absl::OkStatus();
}

CollectiveService::Options Head::CollectiveOptions() {
  CollectiveService::Options options;
  options.access = access_.get();
  options.patience = process_.flags().timeouts.evict_after;
  if (cluster_ == nullptr) return options;
  options.other_servers = [cluster = cluster_.get()] {
    std::vector<CallDesk::OtherServer> there;
    for (const ServerHello& server : cluster->Hellos()) {
      // Those that are connected.
      if (!server.ticket_key().empty()) there.push_back({server.address(), server.ticket_key()});
    }
    return there;
  };
  return options;
}

absl::StatusOr<Head::Ended> Head::Run() {
  const ServerFlags& flags = process_.flags();
  while (!ShutdownSignal::Wait(kTick) && !drain_requested_->load()) {
    // What it has acknowledged is safe; the rest is for the next start to decide.
    RECON_RETURN_IF_ERROR(process_.params()->log()->status());
    RECON_RETURN_IF_ERROR(snapshots_->taken_over());
    if (begin_anew_.load()) return Ended::kForOtherSettings;
    if (rollbacks_->certain()) return Ended::kToRecoverAnew;
    CountCopies();
    access_->Tick(Now());
    if (history_->Due(Now())) NoteStatus();
    bool done = false;
    absl::Status failure;
    bool idle = false;
    std::optional<DivergenceWatch::Finding> divergence;
    coordinator_->lane()->RunAndWait([&] {
      coordinator_->Tick(Now());
      failure = coordinator_->failure();
      failure.Update(FinishGoingBack());
      divergence = coordinator_->TakeDivergence();
      idle = flags.idle_timeout > absl::ZeroDuration() && coordinator_->Idle(Now()) >= flags.idle_timeout;
      done = flags.exit_when_done && coordinator_->DoneAndQuiet(Now(), kFarewell);
    });
    RECON_RETURN_IF_ERROR(failure);
    if (divergence) RECON_RETURN_IF_ERROR(rollbacks_->OnDivergence(*divergence));
    if (done) {
      LogInfo("done: this server ends (--exit-when-done)");
      NoteStatus();
      if (cluster_ != nullptr) cluster_->End(/*servers_too=*/true);
      process_.params()->BeginDrain();
      RECON_RETURN_IF_ERROR(EndWith(absl::OkStatus()));
      return Ended::kForGood;
    }
    if (idle) {
      RECON_RETURN_IF_ERROR(EndWith(EndIdle()));
      return Ended::kForGood;
    }
  }
  RECON_RETURN_IF_ERROR(EndWith(Drain(/*for_good=*/drain_requested_->load())));
  LogInfo("drained");
  return Ended::kForGood;
}

void Head::CountCopies() {
  for (const CopyReason reason : kCopyReasons) {
    prometheus::Counter*& counter = copied_[reason];
    if (counter == nullptr) {
      counter = &process_.metrics()->Counter("recon_server_copied_bytes_total",
                                             "Bytes of frames that were not used in place",
                                             {{"why", CopyReasonName(reason)}});
    }
    counter->Increment(static_cast<double>(CopiedBytes(reason)) - counter->Value());
  }
}

void Head::NoteStatus() {
  absl::StatusOr<StatusReply> status;
  coordinator_->lane()->RunAndWait([&] { status = coordinator_->Status(Now()); });
  if (status.ok()) history_->Note(*std::move(status), Now(), WallNow());
}

}  // namespace recon
