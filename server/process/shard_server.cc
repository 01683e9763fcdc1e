#include "server/process/shard_server.h"

#include <atomic>
#include <optional>
#include <thread>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "common/base/clock.h"
#include "common/base/data_lock.h"
#include "common/base/hash.h"
#include "common/base/host_port.h"
#include "common/base/limits.h"
#include "common/base/log.h"
#include "common/base/mutex.h"
#include "common/base/private_file.h"
#include "common/base/shutdown_signal.h"
#include "common/base/status_macros.h"
#include "common/optim/update_rules.h"
#include "common/rpc/client_channel.h"
#include "common/rpc/param_service.h"
#include "common/rpc/rpc_server.h"
#include "common/rpc/tls_probe.h"
#include "common/rpc/trace_reporter.h"
#include "common/snapshot/manifest.h"
#include "common/storage/store_url.h"
#include "common/tensor/shard_assignment.h"
#include "common/trace/span_names.h"
#include "common/transport/transport.h"
#include "google/protobuf/util/message_differencer.h"
#include "server/data_plane/param_server.h"
#include "server/durability/control_db.h"
#include "server/durability/log_budget.h"
#include "server/durability/log_reader.h"
#include "server/durability/push_log.h"
#include "server/durability/recovery.h"
#include "server/durability/snapshot_writer.h"
#include "server/process/frame_listeners.h"
#include "server/recovery/initial_values.h"
#include "server/recovery/log_replay.h"
#include "server/recovery/snapshot_memory.h"
#include "server/recovery/state_recovery.h"
#include "server/rpc/collective_service.h"
#include "server/rpc/head_link.h"
#include "server/rpc/joined_control_service.h"

namespace recon {
namespace {

constexpr absl::Duration kTick = absl::Milliseconds(100);
// Between two tries to reach the head.
constexpr absl::Duration kRejoin = absl::Milliseconds(300);
constexpr absl::Duration kDrainTimeout = absl::Seconds(10);

}  // namespace

// In the order of their construction; destroyed in reverse.
class ShardServer::Parts {
 public:
  ~Parts();
  absl::Status Open(const ServerFlags& flags);
  absl::Status Run();
  void RequestStop() { stop_.store(true); }
  const std::string& address() const { return rpc_->address(); }

 private:
  // The thread that listens to the head.
  void Follow();
  absl::Status FollowOnce();
  absl::Status Execute(const ServerCommand& command);
  absl::Status TakePlace(const Assignment& assignment);
  absl::Status Recover(const Assignment& assignment);
  absl::Status OpenLog(const Assignment& assignment, const ApplyRules& rules);
  absl::Status CheckSameAssignment(const Assignment& assignment) const;
  void StartCut(const CutCommand& command);
  void WritePart(const CutCommand& command, StateCut cut);

  void Report(ServerReport report);
  ServerReport Progress() const;
  // Where workers reach it.
  std::string OwnAddress() const { return flags_.advertise.empty() ? rpc_->address() : flags_.advertise; }
  void Fail(const absl::Status& status);
  bool ended_or_failed() const;
  std::string LogDirectory() const { return flags_.data + "/log"; }

  ServerFlags flags_;
  TlsFlags tls_;
  Caller caller_;  // Shown to the head.
  std::optional<DataLock> data_lock_;
  Metrics metrics_;
  std::unique_ptr<ControlDb> db_;
  std::shared_ptr<grpc::Channel> head_;
  std::unique_ptr<TraceReporter> traces_;
  std::atomic<bool> stop_{false};

  // Set by the thread that follows, once.
  std::unique_ptr<ObjectStore> store_;
  std::unique_ptr<SnapshotWriter> writer_;
  std::unique_ptr<ParamServer> params_;
  std::atomic<ParamServer*> serving_{nullptr};

  // That thread's.
  ServerPlace place_;
  std::optional<Assignment> assignment_;
  int hurry_ = 0;
  bool drained_ = false;

  mutable Mutex mu_;
  std::shared_ptr<HeadLink> link_ ABSL_GUARDED_BY(mu_);
  absl::Status failure_ ABSL_GUARDED_BY(mu_);
  bool done_ ABSL_GUARDED_BY(mu_) = false;

  // The snapshots' lane: the part that was written last.
  std::optional<SnapshotPart> last_part_;
  double last_part_replay_seconds_ = 0;
  std::atomic<double> replay_seconds_before_{0};  // Of the log that the newest snapshot has made needless.

  Connections connections_;  // Before the server that looks at them.
  std::unique_ptr<ParamService> param_service_;
  std::unique_ptr<JoinedControlService> control_service_;
  std::unique_ptr<CollectiveService> collective_service_;
  std::unique_ptr<RpcServer> rpc_;
  FrameListeners frames_;
  Lane snapshots_{"snapshot"};
  std::thread follower_;
};

absl::Status ShardServer::Parts::Open(const ServerFlags& flags) {
  flags_ = flags;
  tls_ = {flags.tls_cert, flags.tls_key, flags.tls_ca, flags.insecure, flags.token_file};
  RECON_RETURN_IF_ERROR(CheckAddress("--listen", flags.listen));
  RECON_RETURN_IF_ERROR(CheckAddress("--join", flags.join));
  if (!flags.advertise.empty()) RECON_RETURN_IF_ERROR(CheckAddress("--advertise", flags.advertise));
  const std::string host = flags.listen.substr(0, flags.listen.rfind(':'));
  if (flags.advertise.empty() && (host == "0.0.0.0" || host == "[::]" || host.empty())) {
    return absl::InvalidArgumentError(
        absl::StrCat("--listen ", flags.listen,
                     " is every address of this machine: say with --advertise at which one "
                     "workers reach it"));
  }
  if (!tls_.token_file.empty()) {
    RECON_ASSIGN_OR_RETURN(caller_.token, ReadTokenFile(tls_.token_file));
  }
  RECON_ASSIGN_OR_RETURN(head_, ConnectTo(flags.join, tls_));
  traces_ = std::make_unique<TraceReporter>(head_, caller_);
  RECON_RETURN_IF_ERROR(ServerCredentialsFor(flags.listen, tls_).status());
  RECON_RETURN_IF_ERROR(MakePrivateDirectory(flags.data));
  RECON_ASSIGN_OR_RETURN(DataLock data_held, DataLock::Acquire(flags.data));
  data_lock_.emplace(std::move(data_held));
  RECON_ASSIGN_OR_RETURN(db_, ControlDb::Open(flags.data + "/control"));
  RECON_RETURN_IF_ERROR(FileSystem::Local()->CreateDirectories(LogDirectory()));
  RECON_ASSIGN_OR_RETURN(place_, db_->LoadPlace());
  if (place_.server_id() == 0) {
    if (!db_->created()) {  // It has an epoch.
      return absl::FailedPreconditionError(absl::StrCat(
          "--data ", flags.data, " is that of a job's head: a server with --join needs its own"));
    }
    place_.set_server_id(RandomNonZero());
    RECON_RETURN_IF_ERROR(db_->SavePlace(place_));
  }
  if (!flags.metrics_address.empty()) RECON_RETURN_IF_ERROR(metrics_.Serve(flags.metrics_address));
  const RequestHandler handler = [this](const ByteChain& request, TakenCallback taken, Transport::Done done,
                                        RequestContext context) {
    ParamServer* params = serving_.load(std::memory_order_acquire);
    if (params == nullptr) return done(absl::UnavailableError("the server has no place in the job yet"));
    params->Handle(request, Now(), std::move(taken), std::move(done), std::move(context));
  };
  RECON_RETURN_IF_ERROR(frames_.Start(flags, tls_, place_.server_id(), handler, /*connected=*/nullptr));
  param_service_ = std::make_unique<ParamService>(
      handler, /*connected=*/nullptr, &connections_, [this](Incarnation sender) {
        const ParamServer* params = serving_.load(std::memory_order_acquire);
        return params != nullptr && params->Knows(sender);
      });
  control_service_ = std::make_unique<JoinedControlService>(flags.join);
  CollectiveService::Options collective;
  collective.head = false;
  collective.connections = &connections_;
  collective_service_ = std::make_unique<CollectiveService>(collective);
  RECON_ASSIGN_OR_RETURN(
      rpc_, RpcServer::Start("--listen", flags.listen, tls_,
                             {param_service_.get(), control_service_.get(), collective_service_.get()},
                             &connections_));
  RECON_RETURN_IF_ERROR(WriteOwnFile(flags.data + "/ADDRESS", rpc_->address() + "\n"));
  LogInfo("listening on {}, looking for the head at {}", rpc_->address(), flags.join);
  follower_ = std::thread([this] { Follow(); });
  return absl::OkStatus();
}

ShardServer::Parts::~Parts() {
  stop_.store(true);
  {
    MutexLock lock(&mu_);
    if (link_ != nullptr) link_->Cancel();
  }
  if (follower_.joinable()) follower_.join();
  if (params_ != nullptr) params_->BeginDrain();
  // Whoever calls the handlers, then what they call.
  frames_.Stop();
  if (param_service_ != nullptr) param_service_->Close();
  if (collective_service_ != nullptr) collective_service_->Close();
  if (rpc_ != nullptr) rpc_->Shutdown(absl::ZeroDuration());
  if (params_ == nullptr) return;
  writer_->Hurry(1);
  // Cuts before this one have come to their lane then.
  Notification cut;
  params_->Cut([&cut](const StateCut&) { cut.Notify(); });
  cut.WaitForNotification();
  snapshots_.RunAndWait([] {});
}

void ShardServer::Parts::Follow() {
  bool said = false;
  absl::Status cause;  // Why the head cannot be reached, as far as its certificate tells.
  while (!stop_.load()) {
    const absl::Status ended = FollowOnce();
    if (stop_.load() || ended_or_failed()) return;
    const bool hopeless = absl::IsFailedPrecondition(ended) || absl::IsInvalidArgument(ended);
    if (absl::IsUnimplemented(ended)) {
      return Fail(absl::FailedPreconditionError(
          absl::StrCat(flags_.join, " is not the head of several servers: start it with --servers")));
    }
    if (hopeless) return Fail(ended);
    if (drained_)
      return Fail(absl::UnavailableError("the head has gone while the job was drained: start again"));
    const absl::Status before =
        std::exchange(cause, absl::IsUnavailable(ended) && params_ == nullptr ? ProbeTls(flags_.join, tls_)
                                                                              : absl::OkStatus());
    if (!cause.ok() && cause == before) return Fail(cause);
    if (!said && cause.ok()) LogWarn("the head cannot be reached, trying again: {}", ended.message());
    said = said || cause.ok();
    absl::SleepFor(kRejoin);
  }
}

absl::Status ShardServer::Parts::FollowOnce() {
  const auto link = std::make_shared<HeadLink>(head_, caller_);
  {
    MutexLock lock(&mu_);
    link_ = link;
  }
  ServerReport report;
  ServerHello* hello = report.mutable_hello();
  hello->set_server_id(place_.server_id());
  hello->set_address(OwnAddress());
  hello->set_shared_memory(frames_.shared_memory());
  hello->set_ucx_address(frames_.ucx_address());
  hello->set_job_id(place_.job_id());
  hello->set_server(place_.server());
  hello->set_servers(place_.servers());
  link->Send(report);
  absl::Status failure;
  ServerCommand command;
  while (failure.ok() && !stop_.load() && link->Receive(&command)) failure = Execute(command);
  {
    MutexLock lock(&mu_);
    link_ = nullptr;
  }
  if (!failure.ok() || stop_.load()) link->Cancel();
  const absl::Status ended = link->Finish();
  if (!failure.ok()) Fail(failure);  // Ours, not the connection's: the next start may do better.
  return ended.ok() ? absl::UnavailableError("the head has ended the connection") : ended;
}

absl::Status ShardServer::Parts::Execute(const ServerCommand& command) {
  if (command.has_assign()) return TakePlace(command.assign());
  if (command.has_shutdown()) {
    MutexLock lock(&mu_);
    done_ = true;
    return absl::OkStatus();
  }
  if (params_ == nullptr) return absl::InternalError("a command before a place");
  switch (command.command_case()) {
    case ServerCommand::kBegin:
      params_->SetClusterEpoch(command.begin().cluster_epoch());
      LogInfo("cluster epoch {}", command.begin().cluster_epoch());
      break;
    case ServerCommand::kAdmit:
      params_->Admit(WorkerId(command.admit().worker()), Incarnation(command.admit().incarnation()),
                     command.admit().next_step());
      break;
    case ServerCommand::kExpel:
      params_->Expel(WorkerId(command.expel().worker()));
      break;
    case ServerCommand::kClose: {
      RECON_ASSIGN_OR_RETURN(const StepClosing closing, DecodeClosing(command.close()));
      params_->FollowClosing(closing);
      break;
    }
    case ServerCommand::kFrontier:
      params_->FollowFrontier(command.frontier().step(), command.frontier().anyone_active());
      break;
    case ServerCommand::kAwaitInitialValues:
      params_->AwaitInitialValues(WorkerId(command.await_initial_values().worker()),
                                  [this, round = command.await_initial_values().round()] {
                                    ServerReport report;
                                    report.mutable_initial_values()->set_round(round);
                                    Report(report);
                                  });
      break;
    case ServerCommand::kCut:
      StartCut(command.cut());
      break;
    case ServerCommand::kPublished:
      snapshots_.Post([this, attempt = command.published()] {
        if (!last_part_ || last_part_->attempt() != attempt) return;
        replay_seconds_before_ = last_part_replay_seconds_;
        writer_->NotePublished(last_part_->part());
        params_->NoteSnapshot(last_part_->server().log_from());
      });
      break;
    case ServerCommand::kTrace:
      traces_->Follow(command.trace().trace(), absl::Milliseconds(command.trace().left_ms()),
                      DescribeMember(TRACE_ROLE_SERVER, OwnAddress(), place_.server()));
      break;
    case ServerCommand::kHurry:
      writer_->Hurry(command.hurry() - std::exchange(hurry_, command.hurry()));
      break;
    case ServerCommand::kDrain:
      drained_ = true;
      params_->BeginDrain();
      snapshots_.Post([this] {
        params_->WaitUntilIdle(kDrainTimeout);
        ServerReport report;
        report.mutable_drained();
        Report(report);
      });
      break;
    default:
      return absl::UnimplementedError("a command of a newer head: this server is too old for it");
  }
  return absl::OkStatus();
}

absl::Status ShardServer::Parts::CheckSameAssignment(const Assignment& assignment) const {
  Assignment before = *assignment_;
  Assignment now = assignment;
  for (Assignment* one : {&before, &now}) {
    one->clear_resume();
    one->mutable_rules()->clear_cluster_epoch();
  }
  if (google::protobuf::util::MessageDifferencer::Equals(before, now)) return absl::OkStatus();
  return absl::FailedPreconditionError("the head's settings have changed: start this server again");
}

absl::Status ShardServer::Parts::TakePlace(const Assignment& assignment) {
  if (params_ == nullptr) {
    RECON_RETURN_IF_ERROR(Recover(assignment));
    assignment_ = assignment;
  } else {
    RECON_RETURN_IF_ERROR(CheckSameAssignment(assignment));
  }
  ServerReport report;
  ServerReady* ready = report.mutable_ready();
  ready->set_frontier_step(params_->frontier());
  ready->set_has_values(params_->has_values());
  ready->set_needs_snapshot(params_->awaits_snapshot());
  ready->set_cluster_epoch(params_->cluster_epoch());
  Report(report);
  return absl::OkStatus();
}

absl::Status ShardServer::Parts::Recover(const Assignment& assignment) {
  if (assignment.server() == 0 || assignment.servers() > limits::kServersMax ||
      assignment.server() >= assignment.servers()) {
    return absl::InvalidArgumentError(
        absl::StrCat("place ", assignment.server(), " of ", assignment.servers(), " is none"));
  }
  RECON_ASSIGN_OR_RETURN(ApplyRules rules, DecodeRules(assignment.rules()));
  RECON_ASSIGN_OR_RETURN(const ServerFlags::Durability durability, ParseDurability(assignment.durability()));
  const std::string directory = flags_.snapshot_dir.empty() ? assignment.snapshot_dir() : flags_.snapshot_dir;
  // Not as its owner: that is the head, which clears away what is left of writers.
  RECON_ASSIGN_OR_RETURN(store_, OpenStore(directory, /*writer=*/false));
  SnapshotWriter::Options writer_options;
  writer_options.zstd_level = assignment.zstd_level();
  writer_options.keep.last = assignment.snapshot_keep();
  RECON_ASSIGN_OR_RETURN(const StoreUrl snapshot_url, ParseStoreUrl(directory));
  writer_options.shared = !snapshot_url.local();
  writer_ = std::make_unique<SnapshotWriter>(store_.get(), writer_options);

  ParamServer::Options options;
  options.rules = rules;
  if (!assignment.state().empty()) {
    RECON_ASSIGN_OR_RETURN(options.state, ParseStateOwner(assignment.state()));
  }
  options.apply_threads = flags_.apply_threads;
  options.refused_codecs = assignment.refused_codecs();
  options.memory_bytes = ServerMemory();
  options.server = assignment.server();
  options.servers = assignment.servers();
  options.report_delivery = [this](WorkerId worker, Incarnation incarnation, uint64_t step,
                                   absl::Span<const uint32_t> shards, uint32_t push_parts) {
    ServerReport report;
    report.mutable_delivered()->set_worker(worker.value());
    report.mutable_delivered()->set_incarnation(incarnation.value());
    report.mutable_delivered()->set_step(step);
    report.mutable_delivered()->mutable_shards()->Assign(shards.begin(), shards.end());
    report.mutable_delivered()->set_push_parts(push_parts);
    Report(std::move(report));
  };
  auto params = std::make_unique<ParamServer>(options, &metrics_);
  RECON_RETURN_IF_ERROR(params->DefineModel(assignment.model()));

  // Its log first: from here on the data directory is that of this place, and has nothing of another.
  if (!assignment.resume()) RECON_RETURN_IF_ERROR(RemoveLog(LogDirectory()));
  place_.set_job_id(assignment.job_id());
  place_.set_server(assignment.server());
  place_.set_servers(assignment.servers());
  RECON_RETURN_IF_ERROR(db_->SavePlace(place_));
  params_ = std::move(params);

  const SnapshotReader reader(store_.get());
  RECON_ASSIGN_OR_RETURN(const std::optional<Manifest> newest,
                         LoadNewest(reader, [&](const Manifest& manifest) {
                           return LoadInto(params_.get(), reader, ForServer(manifest, assignment.server()));
                         }));
  if (newest) {
    LogInfo("restored its part of snapshot {} {:.0f} ms after process start", newest->generation(),
            absl::ToDoubleMilliseconds(ProcessUptime()));
    writer_->NoteRestored(*newest);
    const Manifest mine = ForServer(*newest, assignment.server());
    bool needs_snapshot = true;
    if (assignment.resume() && ServersOf(*newest) == assignment.servers()) {
      ControlState none;
      const bool synced = durability == ServerFlags::Durability::kSync;
      RECON_ASSIGN_OR_RETURN(const LogEnd end,
                             ReplayAndReport(LogDirectory(), mine, synced, params_.get(), &none, &metrics_));
      needs_snapshot = NeedsSnapshotFirst(end, synced, params_->sequence());
    } else {
      RECON_RETURN_IF_ERROR(RemoveLog(LogDirectory()));
    }
    if (!needs_snapshot) {
      params_->NoteSnapshot(FirstRecordFor(mine));
    }
  } else {
    RECON_ASSIGN_OR_RETURN(const uint64_t pushes, CountLoggedPushes(FileSystem::Local(), LogDirectory()));
    if (pushes > 0) {
      return absl::FailedPreconditionError(absl::StrCat(
          LogDirectory(), " has ", pushes, " pushes that go on from a snapshot, but there is none in ",
          directory, ": do all servers see the same directory?"));
    }
    RECON_RETURN_IF_ERROR(RemoveLog(LogDirectory()));
    if (!assignment.from_snapshot().empty()) {
      RECON_ASSIGN_OR_RETURN(const auto initial, InitialValues::Open(assignment.from_snapshot(),
                                                                     assignment.from_snapshot_generation()));
      RECON_RETURN_IF_ERROR(initial->LoadInto(params_.get()));
    }
  }
  if (durability == ServerFlags::Durability::kSnapshot) {
    RECON_RETURN_IF_ERROR(
        RemoveLog(LogDirectory()));  // What it had is in the state, and not to be read again.
  } else {
    RECON_RETURN_IF_ERROR(OpenLog(assignment, rules));
  }
  uint64_t parameters = 0;
  const std::vector<uint32_t> server_of_shard = AssignShards(*params_->layout(), assignment.servers());
  for (uint32_t i = 0; i < server_of_shard.size(); ++i) {
    if (server_of_shard[i] == assignment.server()) parameters += params_->layout()->shards()[i].size;
  }
  LogInfo("server {} of {}: {} of {} parameters of {}", assignment.server(), assignment.servers(), parameters,
          params_->layout()->params(), assignment.model().name());
  params_->SetClusterEpoch(0);  // Nobody is let in before BeginEpoch.
  params_->NoteReady();
  serving_.store(params_.get(), std::memory_order_release);
  rpc_->SetServing(true);
  return absl::OkStatus();
}

absl::Status ShardServer::Parts::OpenLog(const Assignment& assignment, const ApplyRules& rules) {
  PushLog::Options options;
  options.directory = LogDirectory();
  options.sync = assignment.durability() == DurabilityName(ServerFlags::Durability::kSync);
  RECON_RETURN_IF_ERROR(
      SetLogBudget(FileSystem::Local(), flags_.log_max_bytes, assignment.log_segment_bytes(), &options));
  RECON_ASSIGN_OR_RETURN(auto log,
                         PushLog::Open(options, FileSystem::Local(), rules, params_->sequence() + 1));
  params_->SetLog(std::move(log));
  return absl::OkStatus();
}

void ShardServer::Parts::StartCut(const CutCommand& command) {
  params_->Cut([this, command](StateCut cut) {
    snapshots_.Post([this, command, cut = std::move(cut)]() mutable { WritePart(command, std::move(cut)); });
  });
}

void ShardServer::Parts::WritePart(const CutCommand& command, StateCut cut) {
  const uint64_t generation = command.generation();
  const trace::Span span(trace::kSnapshot);
  SnapshotPart part;
  part.set_generation(generation);
  part.set_attempt(command.attempt());
  const double replay_seconds = cut.replay_seconds;
  part.mutable_server()->set_sequence(cut.sequence);
  part.mutable_server()->set_log_from(cut.log_from);
  const SnapshotMemory bound(assignment_->snapshot_memory_percent() / 100.0, params_->memory_left(), cut);
  absl::StatusOr<Manifest> written = writer_->WritePart(
      *params_->layout(), std::move(cut.shards), Generation(generation), params_->server(),
      command.background() ? SnapshotWriter::Pace::kBackground : SnapshotWriter::Pace::kNow);
  if (written.ok()) {
    *part.mutable_part() = *std::move(written);
    last_part_ = part;
    last_part_replay_seconds_ = replay_seconds;
  } else {
    LogError("part of snapshot {}: {}", generation, written.status().message());
    part.set_error(std::string(written.status().message()));
  }
  ServerReport report;
  *report.mutable_part() = std::move(part);
  // A message that is too long would end the connection, again and again.
  if (const size_t bytes = report.ByteSizeLong(); bytes > limits::kControlMessageBytesMax) {
    last_part_.reset();
    report.mutable_part()->clear_part();
    report.mutable_part()->set_error(absl::StrCat(
        "its part of the manifest has ", bytes, " bytes, allowed are ", limits::kControlMessageBytesMax,
        ": use more servers, or workers with names that come again"));
    LogError("part of snapshot {}: {}", generation, report.part().error());
  }
  Report(std::move(report));
}

void ShardServer::Parts::Report(ServerReport report) {
  MutexLock lock(&mu_);
  // Without a head nobody needs it: what counts is asked anew when there is one.
  if (link_ != nullptr) link_->Send(std::move(report));
}

ServerReport ShardServer::Parts::Progress() const {
  ServerReport report;
  ServerProgress* progress = report.mutable_progress();
  if (const ParamServer* params = serving_.load(std::memory_order_acquire); params != nullptr) {
    const ParamServer::Stats stats = params->GetStats();
    progress->set_pushes(stats.pushes);
    progress->set_duplicate_pushes(stats.duplicates);
    progress->set_sequence(stats.sequence);
    progress->set_frontier_step(params->frontier());
    progress->set_replay_seconds(params->replay_seconds() - replay_seconds_before_.load());
    progress->set_recover_ms(stats.recover_ms);
    progress->set_log_wants_snapshot(params->log_wants_snapshot());
  }
  return report;
}

void ShardServer::Parts::Fail(const absl::Status& status) {
  MutexLock lock(&mu_);
  failure_.Update(status);
}

bool ShardServer::Parts::ended_or_failed() const {
  MutexLock lock(&mu_);
  return done_ || !failure_.ok();
}

absl::Status ShardServer::Parts::Run() {
  while (!ShutdownSignal::Wait(kTick) && !stop_.load()) {
    {
      MutexLock lock(&mu_);
      RECON_RETURN_IF_ERROR(failure_);
      if (done_) {
        LogInfo("the head has ended the job");
        return absl::OkStatus();
      }
    }
    if (ParamServer* params = serving_.load(std::memory_order_acquire); params != nullptr) {
      RECON_RETURN_IF_ERROR(params->log_status());
      params->Tick(Now());
    }
    Report(Progress());
  }
  const std::string signal = ShutdownSignal::Name();
  LogInfo("stopped{}{}", signal.empty() ? "" : ": ", signal);
  return absl::OkStatus();
}

ShardServer::ShardServer(std::unique_ptr<Parts> parts) : parts_(std::move(parts)) {}
ShardServer::~ShardServer() = default;

absl::StatusOr<std::unique_ptr<ShardServer>> ShardServer::Start(const ServerFlags& flags) {
  auto parts = std::make_unique<Parts>();
  RECON_RETURN_IF_ERROR(parts->Open(flags));
  return std::unique_ptr<ShardServer>(new ShardServer(std::move(parts)));
}

const std::string& ShardServer::address() const { return parts_->address(); }
absl::Status ShardServer::RunUntilStopped() { return parts_->Run(); }
void ShardServer::RequestStop() { parts_->RequestStop(); }

}  // namespace recon
