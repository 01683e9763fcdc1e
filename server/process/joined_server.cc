#include "server/process/joined_server.h"

#include <utility>

#include "common/base/clipped_text.h"
#include "common/base/clock.h"
#include "common/base/limits.h"
#include "common/base/log.h"
#include "common/base/status_macros.h"
#include "google/protobuf/util/message_differencer.h"
#include "server/durability/log_format.h"

namespace recon {
namespace {

constexpr absl::Duration kDrainTimeout = absl::Seconds(10);

}  // namespace

JoinedServer::JoinedServer(ShardHost* host) : host_(host), heard_at_(Now()) {}

absl::Status JoinedServer::Follow(const std::shared_ptr<HeadLink>& link) {
  ServerReport hello;
  *hello.mutable_hello() = host_->Hello();
  link->Send(hello);
  {
    MutexLock lock(&mu_);
    if (!stopped_) link_ = link;  // Nothing is reported before the hello.
  }
  absl::Status failure;
  ServerCommand command;
  while (failure.ok() && !stopped() && !begins_anew() && link->Receive(&command)) {
    NoteHeard(command, /*begins=*/true);
    failure = Execute(command);
    NoteHeard(command, /*begins=*/false);
  }
  bool drained_in_vain = false;
  {
    MutexLock lock(&mu_);
    link_ = nullptr;
    drained_in_vain = drained_ && !done_ && !stopped_ && !leaving_;
  }
  if (!failure.ok() || stopped() || begins_anew()) link->Cancel();
  const absl::Status ended = link->Finish();
  if (!failure.ok()) Fail(failure);  // Ours, not the connection's.
  if (drained_in_vain) BeginAnew("the head has gone while it drained, and the job has not ended");
  return ended.ok() ? absl::UnavailableError("the head has ended the connection") : ended;
}

void JoinedServer::Stop() {
  MutexLock lock(&mu_);
  stopped_ = true;
  if (link_ != nullptr) link_->Cancel();
}

bool JoinedServer::AwaitStop(absl::Duration timeout) {
  MutexLock lock(&mu_);
  return mu_.AwaitFor(timeout, [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) { return stopped_; });
}

absl::Status JoinedServer::Execute(const ServerCommand& command) {
  if (command.has_waits()) return absl::OkStatus();
  if (command.has_assign()) return TakePlace(command.assign());
  if (command.has_shutdown()) {
    MutexLock lock(&mu_);
    done_ = true;
    return absl::OkStatus();
  }
  ParamServer* const params = host_->accepting();
  if (params == nullptr) return absl::InternalError("a command before a place");
  switch (command.command_case()) {
    case ServerCommand::kBegin:
      params->SetClusterEpoch(command.begin().cluster_epoch());
      recovered_.lost = false;
      LogInfo("cluster epoch {}", command.begin().cluster_epoch());
      break;
    case ServerCommand::kAdmit:
      params->members()->Admit(WorkerId(command.admit().worker()), Incarnation(command.admit().incarnation()),
                               command.admit().next_step());
      host_->NoteAdmitted(Incarnation(command.admit().incarnation()));
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
      TakeInitialValues(command.await_initial_values());
      break;
    case ServerCommand::kAwaitState:
      TakeState(command.await_state());
      break;
    case ServerCommand::kCommitState:
      return WorkersStateOf(params)->CommitState(command.commit_state());
    case ServerCommand::kRestoreState:
      return host_->RestoreState(command.restore_state());
    case ServerCommand::kCut:
      host_->parts()->Cut(command.cut());
      break;
    case ServerCommand::kPublished:
      host_->parts()->NotePublished(command.published());
      break;
    case ServerCommand::kTrace:
      host_->FollowTrace(command.trace());
      break;
    case ServerCommand::kHurry:
      if (command.hurry() < 0)
        return absl::InvalidArgumentError("a command of the head: it hurries by less than 0");
      host_->parts()->Hurry(command.hurry());
      break;
    case ServerCommand::kDrain:
      BeginDrain();
      break;
    default:
      return absl::UnimplementedError("a command of a newer head: this server is too old for it");
  }
  return absl::OkStatus();
}

absl::Status JoinedServer::TakePlace(const Assignment& assignment) {
  if (!assignment_) {
    RECON_ASSIGN_OR_RETURN(recovered_, host_->TakeUp(assignment));
    assignment_ = assignment;
  } else if (!IsSameAssignment(assignment)) {
    BeginAnew("the head has other settings than before");
    return absl::OkStatus();
  }
  host_->accepting()->members()->SetQuorum(assignment.quorum(), std::nullopt);
  return ReportReady(assignment);
}

absl::Status JoinedServer::ReportReady(const Assignment& assignment) {
  ParamServer& params = *host_->accepting();
  ServerReport report;
  ServerReady* ready = report.mutable_ready();
  ready->set_frontier_step(params.members()->frontier());
  ready->set_has_values(params.has_values());
  ready->set_needs_snapshot(params.has_values() && params.log()->awaits_snapshot());
  ready->set_cluster_epoch(params.rules().cluster_epoch);
  ready->set_generation(recovered_.generation);
  ready->set_sequence(params.position().sequence);
  ready->set_lost(recovered_.lost);
  ready->set_state_version(WorkersStateOf(&params)->state_version());
  if (assignment.count_beyond()) {
    RECON_ASSIGN_OR_RETURN(const LoggedWork beyond, host_->CountBeyond(assignment.newest_sequence()));
    ready->set_pushes_beyond(beyond.pushes);
    ready->set_samples_beyond(beyond.samples);
  }
  Report(std::move(report));
  return absl::OkStatus();
}

bool JoinedServer::IsSameAssignment(const Assignment& assignment) const {
  Assignment before = *assignment_;
  Assignment now = assignment;
  for (Assignment* one : {&before, &now}) {
    one->clear_resume();
    one->clear_quorum();
    one->clear_newest_sequence();
    one->clear_count_beyond();
    one->clear_go_back_generation();
    one->clear_go_back_first_step();
    one->mutable_rules()->clear_cluster_epoch();
  }
  return google::protobuf::util::MessageDifferencer::Equals(before, now);
}

void JoinedServer::BeginAnew(const std::string& why) {
  LogInfo("{}: this server recovers its place anew", why);
  MutexLock lock(&mu_);
  begins_anew_ = true;
}

void JoinedServer::TakeInitialValues(const AwaitInitialValues& command) {
  host_->accepting()->AwaitInitialValues(WorkerId(command.worker()), [this, round = command.round()] {
    ServerReport report;
    report.mutable_initial_values()->set_round(round);
    Report(std::move(report));
  });
}

void JoinedServer::TakeState(const AwaitState& command) {
  const auto staged = [this, upload = command.upload()](uint64_t step) {
    ServerReport report;
    report.mutable_staged()->set_upload(upload);
    report.mutable_staged()->set_step(step);
    Report(std::move(report));
  };
  WorkersStateOf(host_->accepting())->AwaitState(WorkerId(command.worker()), command.upload(), staged);
}

void JoinedServer::BeginDrain() {
  {
    MutexLock lock(&mu_);
    drained_ = true;
  }
  ParamServer* const params = host_->accepting();
  params->BeginDrain();
  host_->parts()->Post([this, params] {
    params->WaitUntilIdle(kDrainTimeout);
    ServerReport report;
    report.mutable_drained();
    Report(std::move(report));
  });
}

void JoinedServer::Report(ServerReport report) {
  MutexLock lock(&mu_);
  // Without a head nobody needs it: what counts is asked anew when there is one.
  if (link_ != nullptr) link_->Send(std::move(report));
}

void JoinedServer::ReportDelivery(WorkerId worker, Incarnation incarnation, uint64_t step,
                                  absl::Span<const uint32_t> shards, uint32_t push_parts) {
  ServerReport report;
  report.mutable_delivered()->set_worker(worker.value());
  report.mutable_delivered()->set_incarnation(incarnation.value());
  report.mutable_delivered()->set_step(step);
  report.mutable_delivered()->mutable_shards()->Assign(shards.begin(), shards.end());
  report.mutable_delivered()->set_push_parts(push_parts);
  Report(std::move(report));
}

void JoinedServer::ReportProgress() {
  ServerReport report;
  ServerProgress* progress = report.mutable_progress();
  if (ParamServer* const params = host_->accepting(); params != nullptr) {
    const ParamServer::Stats stats = params->GetStats();
    progress->set_pushes(stats.pushes);
    progress->set_duplicate_pushes(stats.duplicates);
    progress->set_sequence(stats.sequence);
    progress->set_frontier_step(params->members()->frontier());
    progress->set_replay_seconds(params->position().replay_seconds - host_->parts()->replay_seconds_before());
    progress->set_recover_ms(stats.recover_ms);
    progress->set_log_wants_snapshot(params->log()->wants_snapshot());
    progress->set_log_bytes(params->log()->disk_bytes());
    progress->set_log_budget_bytes(params->log()->budget_bytes());
    progress->set_log_full(std::string(params->log()->CheckRoom().message()));
  }
  Report(std::move(report));
}

void JoinedServer::Leave(const std::string& why, absl::Duration timeout) {
  ServerReport report;
  report.mutable_leaving()->set_why(why);
  MutexLock lock(&mu_);
  leaving_ = true;
  if (link_ == nullptr) return;
  link_->Send(std::move(report));
  (void)mu_.AwaitFor(timeout, [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) { return link_ == nullptr; });
}

bool JoinedServer::leaving() const {
  MutexLock lock(&mu_);
  return leaving_;
}

void JoinedServer::NoteHeard(const ServerCommand& command, bool begins) {
  MutexLock lock(&mu_);
  heard_at_ = Now();
  executing_ = begins;
  if (command.has_waits())
    waits_for_ = ClippedText(command.waits().waits_for(), limits::kProgressTextBytesMax);
}

absl::Time JoinedServer::heard_at() const {
  MutexLock lock(&mu_);
  return executing_ ? Now() : heard_at_;  // What comes meanwhile waits to be read.
}

std::string JoinedServer::waits_for() const {
  MutexLock lock(&mu_);
  return waits_for_;
}

bool JoinedServer::stopped() const {
  MutexLock lock(&mu_);
  return stopped_;
}

bool JoinedServer::done() const {
  MutexLock lock(&mu_);
  return done_;
}

bool JoinedServer::drained() const {
  MutexLock lock(&mu_);
  return drained_;
}

bool JoinedServer::begins_anew() const {
  MutexLock lock(&mu_);
  return begins_anew_;
}

absl::Status JoinedServer::failure() const {
  MutexLock lock(&mu_);
  return failure_;
}

void JoinedServer::Fail(const absl::Status& why) {
  MutexLock lock(&mu_);
  failure_.Update(why);
}

}  // namespace recon
