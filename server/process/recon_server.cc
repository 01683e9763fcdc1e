#include "server/process/recon_server.h"

#include <utility>

#include "absl/strings/match.h"
#include "common/base/clock.h"
#include "common/base/log.h"
#include "common/base/start_guard.h"
#include "common/base/status_macros.h"
#include "server/process/flag_warnings.h"

namespace recon {

absl::StatusOr<std::unique_ptr<ReconServer>> ReconServer::Start(const ServerFlags& flags,
                                                                Head::Ending ending) {
  std::unique_ptr<ReconServer> server(new ReconServer(flags, std::move(ending)));
  if (flags.join.empty()) {
    RECON_RETURN_IF_ERROR(server->StartDashboard());
    RECON_RETURN_IF_ERROR(server->OpenHead(absl::ZeroDuration()));
  } else {
    RECON_RETURN_IF_ERROR(server->OpenFollower());
  }
  return server;
}

// First of all: who watches sees that the server recovers.
absl::Status ReconServer::StartDashboard() {
  if (flags_.dashboard.empty()) return absl::OkStatus();
  RECON_ASSIGN_OR_RETURN(dashboard_, Dashboard::Start(flags_.dashboard, flags_.tls));
  LogInfo("dashboard at {}", dashboard_->url());
  return absl::OkStatus();
}

absl::StatusOr<Head::Opened> ReconServer::TryToOpenHead(absl::Duration began) {
  head_ = nullptr;  // Before another one wants the data directory.
  Head::Options options;
  options.flags = flags_;
  options.dashboard = dashboard_.get();
  options.drain_requested = &drain_requested_;
  options.ending = ending_;
  options.began = began;
  auto head = std::make_unique<Head>(options);
  RECON_ASSIGN_OR_RETURN(const Head::Opened opened, head->Open());
  head_ = std::move(head);
  return opened;
}

void ReconServer::SayWarnings() {
  for (const std::string& text : FlagWarnings(flags_)) {
    if (said_.insert(text).second) LogWarn("{}", text);
  }
}

absl::Status ReconServer::OpenHead(absl::Duration began) {
  SayWarnings();
  const StartGuard guard("the server");
  RECON_ASSIGN_OR_RETURN(Head::Opened opened, TryToOpenHead(began));
  if (opened != Head::Opened::kServes) {
    // All that there is was made for something else than is there. Now the database knows.
    LogInfo("starting anew, {}", opened == Head::Opened::kPolicyWasLost
                                     ? "with the policy that the push log has"
                                     : "without the rollback");
    RECON_ASSIGN_OR_RETURN(opened, TryToOpenHead(began));
  }
  if (opened != Head::Opened::kServes) {
    head_ = nullptr;
    return absl::InternalError(opened == Head::Opened::kPolicyWasLost
                                   ? "the control database does not keep the policy"
                                   : "the control database does not drop the rollback");
  }
  address_ = head_->address();
  if (absl::EndsWith(flags_.listen, ":0")) flags_.listen = address_;
  return absl::OkStatus();
}

absl::Status ReconServer::OpenFollower() {
  follower_ = nullptr;  // Before another one wants the data directory.
  const StartGuard guard("the server");
  auto follower = std::make_unique<Follower>(flags_, &drain_requested_);
  RECON_RETURN_IF_ERROR(follower->Open());
  follower_ = std::move(follower);
  address_ = follower_->address();
  if (absl::EndsWith(flags_.listen, ":0")) flags_.listen = address_;
  return absl::OkStatus();
}

absl::Status ReconServer::RunUntilStopped() { return flags_.join.empty() ? RunHead() : RunFollower(); }

absl::Status ReconServer::RunFollower() {
  while (true) {
    RECON_ASSIGN_OR_RETURN(const Follower::Ended ended, follower_->Run());
    if (ended == Follower::Ended::kForGood) return absl::OkStatus();
    RECON_RETURN_IF_ERROR(OpenFollower());
  }
}

absl::Status ReconServer::RunHead() {
  while (true) {
    RECON_ASSIGN_OR_RETURN(const Head::Ended ended, head_->Run());
    if (ended == Head::Ended::kForGood) return absl::OkStatus();
    if (ended == Head::Ended::kForOtherSettings) {
      // Nothing is lost: the job has not begun.
      RECON_ASSIGN_OR_RETURN(flags_, head_->flags().settings.with_proposed(head_->asked_for()));
      flags_.listen = address_;
    }
    const absl::Duration began = ProcessUptime();
    RECON_RETURN_IF_ERROR(OpenHead(began));
  }
}

}  // namespace recon
