#include "server/process/follower.h"

#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/base/clock.h"
#include "common/base/hash.h"
#include "common/base/host_port.h"
#include "common/base/log.h"
#include "common/base/shutdown_signal.h"
#include "common/base/status_macros.h"
#include "common/rpc/tls_probe.h"
#include "common/storage/store_url.h"
#include "common/tensor/shard_assignment.h"
#include "server/process/place_recovery.h"
#include "server/recovery/state_recovery.h"
#include "server/rpc/head_link.h"

namespace recon {
namespace {

constexpr absl::Duration kTick = absl::Milliseconds(100);
// Between two tries to reach the head.
constexpr absl::Duration kRejoin = absl::Milliseconds(300);
// The head has so long to hear that this server was stopped.
constexpr absl::Duration kFarewell = absl::Seconds(1);
// Whoever has no place for longer says so.
constexpr absl::Duration kWithoutPlaceMax = absl::Seconds(2);

}  // namespace

absl::Status Follower::Open() {
  RECON_RETURN_IF_ERROR(CheckAddresses());
  RECON_RETURN_IF_ERROR(ConnectToHead());
  RECON_RETURN_IF_ERROR(process_.LockData());
  RECON_RETURN_IF_ERROR(process_.OpenControlDb());
  RECON_RETURN_IF_ERROR(FileSystem::Local()->CreateDirectories(process_.log_directory()));
  RECON_RETURN_IF_ERROR(OpenIdentity());
  known_workers_.Load();
  RECON_RETURN_IF_ERROR(StartServing());
  LogInfo("listening on {}, looking for the head at {}", address(), process_.flags().join);
  follower_ = std::thread([this] { Follow(); });
  return absl::OkStatus();
}

absl::Status Follower::CheckAddresses() const {
  const ServerFlags& flags = process_.flags();
  RECON_RETURN_IF_ERROR(CheckAddress("--listen", flags.listen));
  RECON_RETURN_IF_ERROR(CheckAddress("--join", flags.join));
  if (!flags.advertise.empty()) {
    RECON_RETURN_IF_ERROR(CheckAddress("--advertise", flags.advertise));
    const std::string here = IsLoopback(flags.listen) ? "" : LoopbackBehindName(flags.advertise);
    if (!here.empty()) {
      LogWarn("--advertise {}: that name is {} on this machine: others do not reach it", flags.advertise,
              here);
    }
    return absl::OkStatus();
  }
  const std::string host = flags.listen.substr(0, flags.listen.rfind(':'));
  if (host != "0.0.0.0" && host != "[::]" && !host.empty()) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat("--listen ", flags.listen,
                   " is every address of this machine: say with --advertise at which one "
                   "workers reach it"));
}

absl::Status Follower::ConnectToHead() {
  const TlsFlags& tls = process_.tls();
  RECON_ASSIGN_OR_RETURN(const Caller caller, CallerFor(tls));
  RECON_ASSIGN_OR_RETURN(head_, ConnectTo(process_.flags().join, tls));
  introduction_ = std::make_unique<Introduction>(caller);
  traces_ = std::make_unique<TraceReporter>(head_, caller);
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
  RECON_RETURN_IF_ERROR(process_.StartListeners(place_.server_id(), /*connected=*/nullptr, &known_workers_));
  control_service_ = std::make_unique<JoinedControlService>(process_.flags().join, process_.connections());
  CollectiveService::Options collective;
  collective.head = false;
  collective.ticket_key = ticket_key_;
  return process_.StartRpc({control_service_.get()}, collective, RevokedClients::kRefused);
}

Follower::~Follower() {
  ending_.store(true);
  joined_.Stop();
  if (follower_.joinable()) follower_.join();
  ParamServer* const params = process_.params();
  if (params != nullptr) params->BeginDrain();
  process_.StopServing(absl::ZeroDuration());
  parts_ = nullptr;
}

void Follower::Follow() {
  while (!stops()) {
    const auto link = std::make_shared<GrpcHeadLink>(head_, introduction_.get());
    const absl::Status ended = joined_.Follow(link);
    const bool decided =
        joined_.done() || joined_.begins_anew() || joined_.leaving() || !joined_.failure().ok();
    if (stops() || decided) return;
    if (link->found_token()) continue;
    if (const absl::Status hopeless = NoteLinkEnded(ended); !hopeless.ok()) return joined_.Fail(hopeless);
    joined_.AwaitStop(kRejoin);
  }
}

absl::Status Follower::NoteLinkEnded(const absl::Status& ended) {
  const std::string& head = process_.flags().join;
  if (absl::IsUnimplemented(ended)) {
    return absl::FailedPreconditionError(
        absl::StrCat(head, " is not the head of several servers: start it with --servers"));
  }
  if (absl::IsFailedPrecondition(ended) || absl::IsInvalidArgument(ended)) return ended;
  const absl::Status before = std::exchange(cause_, absl::IsUnavailable(ended) && process_.params() == nullptr
                                                        ? ProbeTls(head, process_.tls())
                                                        : absl::OkStatus());
  if (!cause_.ok() && cause_ == before) return cause_;
  {
    MutexLock lock(&mu_);
    link_error_ = std::string((cause_.ok() ? ended : cause_).message());
    link_ended_at_ = Now();
  }
  // Once for each absence: SayWaiting() says it again.
  if (cause_.ok() && joined_.heard_at() > link_error_said_at_) {
    LogWarn("the head at {} cannot be reached, trying again: {}", head, ended.message());
    link_error_said_at_ = Now();
  }
  return absl::OkStatus();
}

void Follower::SayWaiting() {
  HeadWatch::Seen seen;
  seen.head = process_.flags().join;
  seen.heard_at = joined_.heard_at();
  seen.drains = joined_.drained();
  seen.waits_for = joined_.waits_for();
  {
    MutexLock lock(&mu_);
    if (seen.heard_at <= link_ended_at_) seen.error = link_error_;
  }
  if (const auto line = head_watch_.Note(seen, Now())) LogWarn("{}", *line);
}

ServerHello Follower::Hello() const {
  ServerHello hello;
  hello.set_server_id(place_.server_id());
  hello.set_address(OwnAddress());
  hello.set_shared_memory(process_.frames().shared_memory());
  hello.set_ucx_address(process_.frames().ucx_address());
  hello.set_job_id(place_.job_id());
  hello.set_server(place_.server());
  hello.set_servers(place_.servers());
  hello.set_ticket_key(ticket_key_);
  return hello;
}

void Follower::FollowTrace(const TraceCommand& command) {
  traces_->Follow(command.trace(), absl::Milliseconds(command.left_ms()),
                  DescribeMember(TRACE_ROLE_SERVER, OwnAddress(), place_.server()));
}

void Follower::NoteAdmitted(Incarnation process) {
  const absl::Status noted = known_workers_.Note(process);
  if (!noted.ok()) LogWarn("a worker is not known after the next start: {}", noted.message());
}

absl::StatusOr<RecoveredPlace> Follower::TakeUp(const Assignment& assignment) {
  has_place_ = true;
  RECON_ASSIGN_OR_RETURN(const ServerFlags::Durability durability, ParseDurability(assignment.durability()));
  const std::string& own_directory = process_.flags().snapshots.directory;
  const std::string directory = own_directory.empty() ? assignment.snapshot_dir() : own_directory;
  RECON_RETURN_IF_ERROR(PlaceOptions(assignment).status());  // Before anything is touched.
  // Not as its owner: that is the head, which clears away what is left of writers.
  RECON_RETURN_IF_ERROR(process_.OpenStore(directory, /*writer=*/false));
  RECON_RETURN_IF_ERROR(MakeParams(assignment));
  RECON_RETURN_IF_ERROR(MakePartWriter(assignment, directory));
  RECON_RETURN_IF_ERROR(SavePlace(assignment));
  RECON_ASSIGN_OR_RETURN(const uint64_t lost_at, process_.db()->LoadLost());
  RECON_ASSIGN_OR_RETURN(const RecoveredPlace recovered,
                         RecoverPlace(assignment, directory, durability == ServerFlags::Durability::kSync,
                                      lost_at, TargetOf(&process_), parts_.get()));
  RECON_RETURN_IF_ERROR(process_.db()->SaveLost(LostAt(lost_at, recovered)));
  RECON_RETURN_IF_ERROR(OpenLog(assignment, durability));
  LogPlace(assignment);
  process_.params()->SetClusterEpoch(0);  // Nobody is let in before BeginEpoch.
  process_.params()->NoteReady();
  process_.AcceptFrames();
  process_.rpc()->SetServing(true);
  return recovered;
}

absl::StatusOr<LoggedWork> Follower::CountBeyond(uint64_t sequence) {
  return CountWork(FileSystem::Local(), process_.log_directory(), sequence + 1,
                   process_.params()->position().sequence);
}

absl::Status Follower::RestoreState(const recon::RestoreState& command) {
  return RestoreWorkersState(process_.params(), process_.store().get(), Generation(command.generation()),
                             command.upload());
}

absl::Status Follower::MakeParams(const Assignment& assignment) {
  RECON_ASSIGN_OR_RETURN(ParamServer::Options options, PlaceOptions(assignment));
  options.report_delivery = [this](WorkerId worker, Incarnation incarnation, uint64_t step,
                                   absl::Span<const uint32_t> shards, uint32_t push_parts) {
    joined_.ReportDelivery(worker, incarnation, step, shards, push_parts);
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
                                        std::make_unique<SnapshotWriter>(process_.store().get(), options),
                                        assignment.snapshot_memory_percent() / 100.0,
                                        [this](ServerReport report) { joined_.Report(std::move(report)); });
  return absl::OkStatus();
}

// The log before the place: from here on the data directory is that of this place, and has nothing of
// another.
absl::Status Follower::SavePlace(const Assignment& assignment) {
  if (!assignment.resume()) RECON_RETURN_IF_ERROR(RemoveLog(FileSystem::Local(), process_.log_directory()));
  place_.set_job_id(assignment.job_id());
  place_.set_server(assignment.server());
  place_.set_servers(assignment.servers());
  return process_.db()->SavePlace(place_);
}

absl::Status Follower::OpenLog(const Assignment& assignment, ServerFlags::Durability durability) {
  if (durability == ServerFlags::Durability::kSnapshot) {
    // What it had is in the state, and not to be read again.
    return RemoveLog(FileSystem::Local(), process_.log_directory());
  }
  RECON_ASSIGN_OR_RETURN(
      const PushLog::Options options,
      process_.MakeLogOptions(durability == ServerFlags::Durability::kSync, assignment.log_segment_bytes()));
  return process_.StartLog(options, process_.params()->rules());
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

std::string Follower::OwnAddress() const {
  const std::string& advertise = process_.flags().advertise;
  return advertise.empty() ? address() : advertise;
}

absl::StatusOr<Follower::Ended> Follower::Run() {
  absl::Time say_waiting_at = Now() + kWithoutPlaceMax;
  while (!ShutdownSignal::Wait(kTick) && !stop_.load()) {
    RECON_RETURN_IF_ERROR(joined_.failure());
    if (joined_.begins_anew()) return Ended::kToBeginAnew;
    if (Now() >= say_waiting_at && !has_place_.load()) {
      say_waiting_at = absl::InfiniteFuture();
      LogInfo(
          "no place in the job yet: its head at {} has no model before a worker has come, and where all "
          "places are taken this server waits for one whose server does not come back (its "
          "--replace-after); the head's log says which",
          process_.flags().join);
    }
    if (joined_.done()) {
      LogInfo("the head has ended the job");
      return Ended::kForGood;
    }
    if (ParamServer* const params = process_.accepting(); params != nullptr) {
      RECON_RETURN_IF_ERROR(params->log()->status());
      params->Tick(Now());
    }
    joined_.ReportProgress();
    SayWaiting();
  }
  const std::string signal = ShutdownSignal::Name();
  LogInfo("stopped{}{}", signal.empty() ? "" : ": ", signal);
  // It may be taking up its place, and wait for a store.
  if (process_.accepting() == nullptr) guard_.emplace("the server");
  // Before the link ends: workers hear that it drains, and the head that it was stopped.
  if (ParamServer* const params = process_.accepting(); params != nullptr) params->BeginDrain();
  joined_.Leave(signal.empty() ? "it was asked to" : signal, kFarewell);
  return Ended::kForGood;
}

}  // namespace recon
