#pragma once

#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "common/base/ids.h"
#include "common/shm/shm_peer.h"
#include "common/transport/worker_secret.h"

namespace recon {

// How the two ends of a connection through shared memory find each other: a Unix socket with an abstract
// name. Such a name is known within one machine and network namespace; the two processes must be of one user.

// A socket that listens under `name`. AlreadyExists if another process does, Unavailable for other failures.
absl::StatusOr<OwnedFd> ListenForShm(const std::string& name);
// The server's end of a connection, and which process the other one is; 0 if it has not said.
struct AcceptedShm {
  std::unique_ptr<ShmPeer> peer;
  Incarnation sender;
};
// The next one. Unavailable if none came, or who came is not to be served: the message says why.
absl::StatusOr<AcceptedShm> AcceptShm(const OwnedFd& listener);
// The worker's end; `secret`: WorkerSecret's bytes, or nothing. Waits for the server for at most a second.
// Unavailable if nobody listens or answers, PermissionDenied if it will not be served: the server is of
// another user or another build, or the memory cannot be had.
absl::StatusOr<std::unique_ptr<ShmPeer>> ConnectShm(const std::string& name, absl::string_view secret = "");

}  // namespace recon
