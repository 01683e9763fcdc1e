#pragma once

#include <atomic>
#include <memory>
#include <set>
#include <string>
#include <utility>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "server/dashboard/dashboard.h"
#include "server/process/follower.h"
#include "server/process/head.h"
#include "server/process/server_flags.h"

namespace recon {

// A whole recon-server; main() and the tests run the same one. With --join it is a Follower, else the Head of
// its job, which it opens again when the job goes back or takes other settings.
//
// Threads: Start(), RunUntilStopped() and the destructor on one thread; RequestDrain() on any.
class ReconServer {
 public:
  // The server listens when this returns, and a head has recovered. `ending` may be null, and is as
  // Head::Options has it.
  static absl::StatusOr<std::unique_ptr<ReconServer>> Start(const ServerFlags& flags,
                                                            Head::Ending ending = nullptr);

  // host:port.
  const std::string& address() const { return address_; }

  // Serves until a drain is asked for (RequestDrain(), reconctl drain, SIGTERM) or, with
  // --exit-when-done, the job is done, or nobody trains it for --idle-timeout; then drains: no new work,
  // what runs is finished, a snapshot. A follower serves until its head ends the job, or it is asked to stop;
  // a head that only ends its process (SIGTERM) is waited for. A rollback (reconctl rollback, undo) stops all
  // there is and recovers anew, in this process.
  absl::Status RunUntilStopped();
  void RequestDrain() { drain_requested_.store(true); }

 private:
  ReconServer(const ServerFlags& flags, Head::Ending ending) : ending_(std::move(ending)), flags_(flags) {}
  absl::Status StartDashboard();
  // What is hardly meant, each once.
  void SayWarnings();
  // `began`: what the process had run for, when it began to do so.
  absl::Status OpenHead(absl::Duration began);
  absl::StatusOr<Head::Opened> TryToOpenHead(absl::Duration began);
  absl::Status RunHead();
  absl::Status OpenFollower();
  absl::Status RunFollower();

  const Head::Ending ending_;
  std::string address_;
  ServerFlags flags_;  // The port is the one that was taken.
  std::set<std::string> said_;
  std::atomic<bool> drain_requested_{false};
  std::unique_ptr<Dashboard> dashboard_;  // Stays while the state goes back; null without --dashboard.
  // One of the two.
  std::unique_ptr<Head> head_;
  std::unique_ptr<Follower> follower_;
};

}  // namespace recon
