#pragma once

#include <atomic>
#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "server/dashboard/dashboard.h"
#include "server/process/head.h"
#include "server/process/server_flags.h"

namespace recon {

// The recon-server that leads a job; main() and the tests run the same one. It opens its Head again when the
// job goes back or takes other settings.
//
// Threads: Start(), RunUntilStopped() and the destructor on one thread; RequestDrain() on any.
class ReconServer {
 public:
  // The server listens when this returns, and has recovered.
  static absl::StatusOr<std::unique_ptr<ReconServer>> Start(const ServerFlags& flags);

  // host:port.
  const std::string& address() const { return address_; }

  // Serves until a drain is asked for (RequestDrain(), reconctl drain, SIGTERM) or, with
  // --exit-when-done, the job is done, or nobody trains it for --idle-timeout; then drains: no new work,
  // what runs is finished, a snapshot.
  // A rollback (reconctl rollback, undo) stops all there is and recovers anew, in this process.
  absl::Status RunUntilStopped();
  void RequestDrain() { drain_requested_.store(true); }

 private:
  explicit ReconServer(const ServerFlags& flags) : flags_(flags) {}
  absl::Status StartDashboard();
  // `began`: what the process had run for, when it began to do so.
  absl::Status OpenHead(absl::Duration began);
  absl::StatusOr<Head::Opened> TryToOpenHead(absl::Duration began);

  std::string address_;
  ServerFlags flags_;  // The port is the one that was taken.
  std::atomic<bool> drain_requested_{false};
  std::unique_ptr<Dashboard> dashboard_;  // Stays while the state goes back; null without --dashboard.
  std::unique_ptr<Head> head_;
};

}  // namespace recon
