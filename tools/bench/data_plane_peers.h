#pragma once

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"

namespace recon {

// The parts of the data-plane bench that run in processes of their own, as recon-bench verbs. Each prints a
// line when it is ready, and then answers each line it reads from standard input with one, until that ends.

// Reads what comes over TCP and drops it. Ready: its port.
absl::Status RunTcpSink();
// Answers "SECONDS CONNECTIONS" with the bytes it has sent in that time.
absl::Status RunTcpSource(int port);
// A gRPC server whose bidirectional streams drop what comes in. Ready: its port.
absl::Status RunGrpcSink();
// Answers "SECONDS CONNECTIONS" with the bytes it has sent in that time, in messages just below 1 MiB.
absl::Status RunGrpcSource(int port);

// A worker without a model: it registers with a server and pushes gradients it has encoded before. Answers
// "push|pull|pushpull SECONDS DEPTH PAUSE_MS" with an object: parameters moved, seconds, and the
// milliseconds each push took. `transport` is "grpc", "shm" or "ucx".
struct PushWorkerOptions {
  std::string server;
  std::string shapes;
  std::string name;
  std::string transport;
};
absl::Status RunPushWorker(const PushWorkerOptions& options);

}  // namespace recon
