#pragma once

#include <memory>

#include "absl/status/statusor.h"
#include "server/process/server_flags.h"

namespace recon {

// A whole recon-server that is not the head of its job (--join): it holds the shards of its place, logs and
// applies what is pushed to them, and does what the head says. It looks for the head until it is stopped;
// when its place is known it restores what its data directory, or the newest snapshot, has of it.
//
// Threads: Start(), RunUntilStopped() and the destructor on one thread; RequestStop() on any.
class ShardServer {
 public:
  // Locks the data directory and opens the port. Workers are told to wait until the head has given it a
  // place.
  static absl::StatusOr<std::unique_ptr<ShardServer>> Start(const ServerFlags& flags);
  ~ShardServer();

  // host:port.
  const std::string& address() const;

  // Serves until the head ends the job, SIGTERM or RequestStop(). FailedPrecondition if the job has no place
  // for it.
  absl::Status RunUntilStopped();
  void RequestStop();

 private:
  class Parts;
  explicit ShardServer(std::unique_ptr<Parts> parts);

  std::unique_ptr<Parts> parts_;
};

}  // namespace recon
