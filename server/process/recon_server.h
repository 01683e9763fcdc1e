#pragma once

#include <atomic>
#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "server/dashboard/dashboard.h"
#include "server/process/server_flags.h"

namespace recon {

// Whether a server ended because of --idle-timeout, by what its RunUntilStopped() returned. Its job is not
// done; there is a snapshot.
bool EndedIdle(const absl::Status& status);

// A whole recon-server, put together from its layers; main() and the tests run the same one.
//
// Threads: Start(), RunUntilStopped() and the destructor on one thread; RequestDrain() on any.
class ReconServer {
 public:
  // Locks the data directory, recovers the newest snapshot that verifies, raises the cluster epoch and
  // opens the port, in this order.
  static absl::StatusOr<std::unique_ptr<ReconServer>> Start(const ServerFlags& flags);
  ~ReconServer();

  // host:port.
  const std::string& address() const { return address_; }

  // Serves until a drain is asked for (RequestDrain(), reconctl drain, SIGTERM) or, with
  // --exit-when-done, the job is done, or nobody trains it for --idle-timeout; then drains: no new work,
  // what runs is finished, a snapshot.
  // A rollback (reconctl rollback, undo) stops all there is and recovers anew, in this process.
  absl::Status RunUntilStopped();
  void RequestDrain();

 private:
  struct Parts;
  explicit ReconServer(const ServerFlags& flags);
  // `began`: what the process had run for, when it began to do so.
  absl::Status Open(absl::Duration began);

  std::string address_;
  ServerFlags flags_;  // The port is the one that was taken.
  std::atomic<bool> drain_requested_{false};
  std::unique_ptr<Dashboard> dashboard_;  // Stays while the state goes back; null without --dashboard.
  std::unique_ptr<Parts> parts_;
};

}  // namespace recon
