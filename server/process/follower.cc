#include "server/process/follower.h"

#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "common/base/clock.h"
#include "common/base/hash.h"
#include "common/base/host_port.h"
#include "common/base/limits.h"
#include "common/base/log.h"
#include "common/base/shutdown_signal.h"
#include "common/base/status_macros.h"
#include "common/optim/update_rules.h"
#include "common/rpc/tls_probe.h"
#include "common/snapshot/manifest.h"
#include "common/storage/store_url.h"
#include "common/tensor/shard_assignment.h"
#include "google/protobuf/util/message_differencer.h"
#include "server/process/recovery.h"
#include "server/recovery/initial_values.h"
#include "server/recovery/log_replay.h"
#include "server/recovery/state_recovery.h"

namespace recon {
namespace {

constexpr absl::Duration kTick = absl::Milliseconds(100);
// Between two tries to reach the head.
constexpr absl::Duration kRejoin = absl::Milliseconds(300);
constexpr absl::Duration kDrainTimeout = absl::Seconds(10);

absl::Status CheckPlace(const Assignment& assignment) {
  if (assignment.server() != 0 && assignment.servers() <= limits::kServersMax &&
      assignment.server() < assignment.servers()) {
    return absl::OkStatus();
  }
  return absl::InvalidArgumentError(
      absl::StrCat("place ", assignment.server(), " of ", assignment.servers(), " is none"));
}

}  // namespace

absl::Status Follower::Open() {
  RECON_RETURN_IF_ERROR(CheckAddresses());
  RECON_RETURN_IF_ERROR(ConnectToHead());
  RECON_RETURN_IF_ERROR(process_.LockData());
  RECON_RETURN_IF_ERROR(process_.OpenControlDb());
  RECON_RETURN_IF_ERROR(FileSystem::Local()->CreateDirectories(process_.log_directory()));
  RECON_RETURN_IF_ERROR(OpenIdentity());
  RECON_RETURN_IF_ERROR(StartServing());
  LogInfo("listening on {}, looking for the head at {}", address(), process_.flags().join);
  follower_ = std::thread([this] { Follow(); });
  return absl::OkStatus();
}

absl::Status Follower::CheckAddresses() const {
  const ServerFlags& flags = process_.flags();
  RECON_RETURN_IF_ERROR(CheckAddress("--listen", flags.listen));
  RECON_RETURN_IF_ERROR(CheckAddress("--join", flags.join));
  if (!flags.advertise.empty()) return CheckAddress("--advertise", flags.advertise);
  const std::string host = flags.listen.substr(0, flags.listen.rfind(':'));
  if (host != "0.0.0.0" && host != "[::]" && !host.empty()) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat("--listen ", flags.listen,
                   " is every address of this machine: say with --advertise at which one "
                   "workers reach it"));
}

absl::Status Follower::ConnectToHead() {
  const TlsFlags& tls = process_.tls();
  if (!tls.token_file.empty()) {
    RECON_ASSIGN_OR_RETURN(caller_.token, ReadTokenFile(tls.token_file));
  }
  RECON_ASSIGN_OR_RETURN(head_, ConnectTo(process_.flags().join, tls));
  traces_ = std::make_unique<TraceReporter>(head_, caller_);
  return absl::OkStatus();
}

// The number by which the head knows this data directory again.
absl::Status Follower::OpenIdentity() {
  RECON_ASSIGN_OR_RETURN(place_, process_.db()->LoadPlace());
  if (place_.server_id() != 0) return absl::OkStatus();
  if (!process_.db()->created()) {  // It has an epoch.
    return absl::FailedPreconditionError(absl::StrCat(
        "--data ", process_.flags().data, " is that of a job's head: a server with --join needs its own"));
  }
  place_.set_server_id(RandomNonZero());
  return process_.db()->SavePlace(place_);
}

absl::Status Follower::StartServing() {
  RECON_RETURN_IF_ERROR(process_.StartListeners(place_.server_id(), /*connected=*/nullptr));
  control_service_ = std::make_unique<JoinedControlService>(process_.flags().join);
  CollectiveService::Options collective;
  collective.head = false;
  RECON_RETURN_IF_ERROR(process_.StartRpc({control_service_.get()}, collective));
  return process_.WriteAddress();
}

Follower::~Follower() {
  stop_.store(true);
  {
    MutexLock lock(&mu_);
    if (link_ != nullptr) link_->Cancel();
  }
  if (follower_.joinable()) follower_.join();
  ParamServer* const params = process_.params();
  if (params != nullptr) params->BeginDrain();
  process_.StopServing(absl::ZeroDuration());
  parts_ = nullptr;
}

void Follower::Follow() {
  const std::string& head = process_.flags().join;
  bool said = false;
  absl::Status cause;  // Why the head cannot be reached, as far as its certificate tells.
  while (!stop_.load()) {
    const absl::Status ended = FollowOnce();
    if (stop_.load() || ended_or_failed()) return;
    const bool hopeless = absl::IsFailedPrecondition(ended) || absl::IsInvalidArgument(ended);
    if (absl::IsUnimplemented(ended)) {
      return Fail(absl::FailedPreconditionError(
          absl::StrCat(head, " is not the head of several servers: start it with --servers")));
    }
    if (hopeless) return Fail(ended);
    if (drained_)
      return Fail(absl::UnavailableError("the head has gone while the job was drained: start again"));
    const absl::Status before = std::exchange(
        cause, absl::IsUnavailable(ended) && process_.params() == nullptr ? ProbeTls(head, process_.tls())
                                                                          : absl::OkStatus());
    if (!cause.ok() && cause == before) return Fail(cause);
    if (!said && cause.ok()) LogWarn("the head cannot be reached, trying again: {}", ended.message());
    said = said || cause.ok();
    absl::SleepFor(kRejoin);
  }
}

absl::Status Follower::FollowOnce() {
  const auto link = std::make_shared<HeadLink>(head_, caller_);
  {
    MutexLock lock(&mu_);
    link_ = link;
  }
  ServerReport report;
  ServerHello* hello = report.mutable_hello();
  hello->set_server_id(place_.server_id());
  hello->set_address(OwnAddress());
  hello->set_shared_memory(process_.frames().shared_memory());
  hello->set_ucx_address(process_.frames().ucx_address());
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

absl::Status Follower::Execute(const ServerCommand& command) {
  if (command.has_assign()) return TakePlace(command.assign());
  if (command.has_shutdown()) {
    MutexLock lock(&mu_);
    done_ = true;
    return absl::OkStatus();
  }
  ParamServer* const params = process_.params();
  if (params == nullptr) return absl::InternalError("a command before a place");
  switch (command.command_case()) {
    case ServerCommand::kBegin:
      params->SetClusterEpoch(command.begin().cluster_epoch());
      LogInfo("cluster epoch {}", command.begin().cluster_epoch());
      break;
    case ServerCommand::kAdmit:
      params->members()->Admit(WorkerId(command.admit().worker()), Incarnation(command.admit().incarnation()),
                               command.admit().next_step());
      break;
    case ServerCommand::kExpel:
      params->members()->Expel(WorkerId(command.expel().worker()));
      break;
    case ServerCommand::kClose: {
      RECON_ASSIGN_OR_RETURN(const StepClosing closing, DecodeClosing(command.close()));
      params->peers()->FollowClosing(closing);
      break;
    }
    case ServerCommand::kFrontier:
      params->peers()->FollowFrontier(command.frontier().step(), command.frontier().anyone_active());
      break;
    case ServerCommand::kAwaitInitialValues:
      params->AwaitInitialValues(WorkerId(command.await_initial_values().worker()),
                                 [this, round = command.await_initial_values().round()] {
                                   ServerReport report;
                                   report.mutable_initial_values()->set_round(round);
                                   Report(report);
                                 });
      break;
    case ServerCommand::kCut:
      parts_->Cut(command.cut());
      break;
    case ServerCommand::kPublished:
      parts_->NotePublished(command.published());
      break;
    case ServerCommand::kTrace:
      traces_->Follow(command.trace().trace(), absl::Milliseconds(command.trace().left_ms()),
                      DescribeMember(TRACE_ROLE_SERVER, OwnAddress(), place_.server()));
      break;
    case ServerCommand::kHurry:
      if (command.hurry() < 0)
        return absl::InvalidArgumentError("a command of the head: it hurries by less than 0");
      parts_->Hurry(command.hurry());
      break;
    case ServerCommand::kDrain:
      BeginDrain();
      break;
    default:
      return absl::UnimplementedError("a command of a newer head: this server is too old for it");
  }
  return absl::OkStatus();
}

void Follower::BeginDrain() {
  drained_ = true;
  process_.params()->BeginDrain();
  parts_->Post([this] {
    process_.params()->WaitUntilIdle(kDrainTimeout);
    ServerReport report;
    report.mutable_drained();
    Report(report);
  });
}

absl::Status Follower::CheckSameAssignment(const Assignment& assignment) const {
  Assignment before = *assignment_;
  Assignment now = assignment;
  for (Assignment* one : {&before, &now}) {
    one->clear_resume();
    one->mutable_rules()->clear_cluster_epoch();
  }
  if (google::protobuf::util::MessageDifferencer::Equals(before, now)) return absl::OkStatus();
  return absl::FailedPreconditionError("the head's settings have changed: start this server again");
}

absl::Status Follower::TakePlace(const Assignment& assignment) {
  if (!assignment_) {
    RECON_RETURN_IF_ERROR(TakeUp(assignment));
    assignment_ = assignment;
  } else {
    RECON_RETURN_IF_ERROR(CheckSameAssignment(assignment));
  }
  ParamServer& params = *process_.params();
  ServerReport report;
  ServerReady* ready = report.mutable_ready();
  ready->set_frontier_step(params.members()->frontier());
  ready->set_has_values(params.has_values());
  ready->set_needs_snapshot(params.has_values() && params.log()->awaits_snapshot());
  ready->set_cluster_epoch(params.rules().cluster_epoch);
  Report(report);
  return absl::OkStatus();
}

absl::Status Follower::TakeUp(const Assignment& assignment) {
  RECON_RETURN_IF_ERROR(CheckPlace(assignment));
  RECON_ASSIGN_OR_RETURN(const ApplyRules rules, DecodeRules(assignment.rules()));
  RECON_ASSIGN_OR_RETURN(const ServerFlags::Durability durability, ParseDurability(assignment.durability()));
  const std::string& own_directory = process_.flags().snapshot_dir;
  const std::string directory = own_directory.empty() ? assignment.snapshot_dir() : own_directory;
  // Not as its owner: that is the head, which clears away what is left of writers.
  RECON_RETURN_IF_ERROR(process_.OpenStore(directory, /*writer=*/false));
  RECON_RETURN_IF_ERROR(MakeParams(assignment, rules));
  RECON_RETURN_IF_ERROR(MakePartWriter(assignment, directory));
  RECON_RETURN_IF_ERROR(SavePlace(assignment));
  RECON_RETURN_IF_ERROR(Recover(assignment, directory, durability == ServerFlags::Durability::kSync));
  RECON_RETURN_IF_ERROR(OpenLog(assignment, rules, durability));
  LogPlace(assignment);
  process_.params()->SetClusterEpoch(0);  // Nobody is let in before BeginEpoch.
  process_.params()->NoteReady();
  process_.AcceptFrames();
  process_.rpc()->SetServing(true);
  return absl::OkStatus();
}

absl::Status Follower::MakeParams(const Assignment& assignment, const ApplyRules& rules) {
  ParamServer::Options options;
  options.rules = rules;
  if (!assignment.state().empty()) {
    RECON_ASSIGN_OR_RETURN(options.state, ParseStateOwner(assignment.state()));
  }
  options.refused_codecs = assignment.refused_codecs();
  options.server = assignment.server();
  options.servers = assignment.servers();
  options.report_delivery = [this](WorkerId worker, Incarnation incarnation, uint64_t step,
                                   absl::Span<const uint32_t> shards, uint32_t push_parts) {
    ReportDelivery(worker, incarnation, step, shards, push_parts);
  };
  process_.MakeParams(std::move(options));
  return process_.params()->DefineModel(assignment.model());
}

absl::Status Follower::MakePartWriter(const Assignment& assignment, const std::string& directory) {
  SnapshotWriter::Options options;
  options.zstd_level = assignment.zstd_level();
  options.keep.last = assignment.snapshot_keep();
  RECON_ASSIGN_OR_RETURN(const StoreUrl url, ParseStoreUrl(directory));
  options.shared = !url.local();
  parts_ = std::make_unique<PartWriter>(process_.params(),
                                        std::make_unique<SnapshotWriter>(process_.store(), options),
                                        assignment.snapshot_memory_percent() / 100.0,
                                        [this](ServerReport report) { Report(std::move(report)); });
  return absl::OkStatus();
}

// The log before the place: from here on the data directory is that of this place, and has nothing of
// another.
absl::Status Follower::SavePlace(const Assignment& assignment) {
  if (!assignment.resume()) RECON_RETURN_IF_ERROR(RemoveLog(process_.log_directory()));
  place_.set_job_id(assignment.job_id());
  place_.set_server(assignment.server());
  place_.set_servers(assignment.servers());
  return process_.db()->SavePlace(place_);
}

absl::Status Follower::Recover(const Assignment& assignment, const std::string& directory, bool synced) {
  ParamServer* const params = process_.params();
  RecoveryOptions options;
  options.server = assignment.server();
  options.servers = assignment.servers();
  options.synced = synced;
  options.log_is_ours = assignment.resume();
  options.restored = [&](const Manifest& snapshot) {
    LogInfo("restored its part of snapshot {} {:.0f} ms after process start", snapshot.generation(),
            absl::ToDoubleMilliseconds(ProcessUptime()));
    parts_->NoteRestored(snapshot);
    return true;
  };
  options.leave_log = [&](const Manifest&) { return RemoveLog(process_.log_directory()); };
  ControlState none;
  RECON_ASSIGN_OR_RETURN(const Recovered recovered, recon::Recover(options, &process_, &none));
  if (!recovered.snapshot) return BeginWithoutSnapshot(assignment, directory);
  if (recovered.replayed && !NeedsSnapshotFirst(*recovered.replayed, synced, params->position().sequence)) {
    params->log()->NoteSnapshot(FirstRecordFor(ForServer(*recovered.snapshot, assignment.server())));
  }
  return absl::OkStatus();
}

absl::Status Follower::BeginWithoutSnapshot(const Assignment& assignment, const std::string& directory) {
  RECON_RETURN_IF_ERROR(CheckNoPushesInLog(process_, directory, "do all servers see the same directory?"));
  RECON_RETURN_IF_ERROR(RemoveLog(process_.log_directory()));
  if (assignment.from_snapshot().empty()) return absl::OkStatus();
  RECON_ASSIGN_OR_RETURN(const auto initial, InitialValues::Open(assignment.from_snapshot(),
                                                                 assignment.from_snapshot_generation()));
  return initial->LoadInto(process_.params());
}

absl::Status Follower::OpenLog(const Assignment& assignment, const ApplyRules& rules,
                               ServerFlags::Durability durability) {
  if (durability == ServerFlags::Durability::kSnapshot) {
    return RemoveLog(process_.log_directory());  // What it had is in the state, and not to be read again.
  }
  RECON_ASSIGN_OR_RETURN(
      const PushLog::Options options,
      process_.MakeLogOptions(durability == ServerFlags::Durability::kSync, assignment.log_segment_bytes()));
  return process_.StartLog(options, rules);
}

void Follower::LogPlace(const Assignment& assignment) const {
  const ParamLayout& layout = *process_.params()->layout();
  uint64_t parameters = 0;
  const std::vector<uint32_t> server_of_shard = AssignShards(layout, assignment.servers());
  for (uint32_t i = 0; i < server_of_shard.size(); ++i) {
    if (server_of_shard[i] == assignment.server()) parameters += layout.shards()[i].size;
  }
  LogInfo("server {} of {}: {} of {} parameters of {}", assignment.server(), assignment.servers(), parameters,
          layout.params(), assignment.model().name());
}

void Follower::Report(ServerReport report) {
  MutexLock lock(&mu_);
  // Without a head nobody needs it: what counts is asked anew when there is one.
  if (link_ != nullptr) link_->Send(std::move(report));
}

void Follower::ReportDelivery(WorkerId worker, Incarnation incarnation, uint64_t step,
                              absl::Span<const uint32_t> shards, uint32_t push_parts) {
  ServerReport report;
  report.mutable_delivered()->set_worker(worker.value());
  report.mutable_delivered()->set_incarnation(incarnation.value());
  report.mutable_delivered()->set_step(step);
  report.mutable_delivered()->mutable_shards()->Assign(shards.begin(), shards.end());
  report.mutable_delivered()->set_push_parts(push_parts);
  Report(std::move(report));
}

ServerReport Follower::Progress() const {
  ServerReport report;
  ServerProgress* progress = report.mutable_progress();
  ParamServer* const params = process_.accepting();
  if (params == nullptr) return report;
  const ParamServer::Stats stats = params->GetStats();
  progress->set_pushes(stats.pushes);
  progress->set_duplicate_pushes(stats.duplicates);
  progress->set_sequence(stats.sequence);
  progress->set_frontier_step(params->members()->frontier());
  progress->set_replay_seconds(params->position().replay_seconds - parts_->replay_seconds_before());
  progress->set_recover_ms(stats.recover_ms);
  progress->set_log_wants_snapshot(params->log()->wants_snapshot());
  return report;
}

std::string Follower::OwnAddress() const {
  const std::string& advertise = process_.flags().advertise;
  return advertise.empty() ? address() : advertise;
}

void Follower::Fail(const absl::Status& status) {
  MutexLock lock(&mu_);
  failure_.Update(status);
}

bool Follower::ended_or_failed() const {
  MutexLock lock(&mu_);
  return done_ || !failure_.ok();
}

absl::Status Follower::Run() {
  while (!ShutdownSignal::Wait(kTick) && !stop_.load()) {
    {
      MutexLock lock(&mu_);
      RECON_RETURN_IF_ERROR(failure_);
      if (done_) {
        LogInfo("the head has ended the job");
        return absl::OkStatus();
      }
    }
    if (ParamServer* const params = process_.accepting(); params != nullptr) {
      RECON_RETURN_IF_ERROR(params->log()->status());
      params->Tick(Now());
    }
    Report(Progress());
  }
  const std::string signal = ShutdownSignal::Name();
  LogInfo("stopped{}{}", signal.empty() ? "" : ": ", signal);
  return absl::OkStatus();
}

}  // namespace recon
