#include <algorithm>
#include <iostream>
#include <string>

#include "common/base/clock.h"
#include "common/base/log.h"
#include "common/base/machine_limits.h"
#include "common/base/plain_text.h"
#include "common/base/process.h"
#include "common/base/shutdown_signal.h"
#include "common/rpc/grpc_log.h"
#include "common/rpc/grpc_tuning.h"
#include "common/rpc/poller_limit.h"
#include "server/process/recon_server.h"
#include "server/process/server_flags.h"

namespace {

// A job that says nothing of its size.
constexpr int kWorkersExpected = 64;

int Run(const recon::ServerFlags& flags) {
  auto server = recon::ReconServer::Start(flags);
  if (!server.ok()) {
    std::cerr << "recon-server: " << recon::EscapeControls(server.status().message()) << "\n";
    return absl::IsInvalidArgument(server.status()) ? 2 : 1;
  }
  const absl::Status status = (*server)->RunUntilStopped();
  if (!status.ok()) std::cerr << "recon-server: " << recon::EscapeControls(status.message()) << "\n";
  if (recon::EndedIdle(status)) return 3;
  return status.ok() ? 0 : absl::IsInvalidArgument(status) ? 2 : 1;
}

}  // namespace

// Exit codes: 0 drained or done, 1 failed at start or while running, 2 wrong flags, or certificates
// that do not fit the head's, 3 nobody has trained for --idle-timeout.
int main(int argc, char** argv) {
  recon::ProcessUptime();
  recon::ShutdownSignal::Install();
  recon::TuneProcess();
  recon::RaiseLimits();
  recon::ExplainMissingThreads();
  recon::TuneGrpc();
  recon::TakeGrpcLog(recon::GrpcLogUse::kServer);
  int exit_code = 0;
  const auto flags = recon::ParseServerFlags(argc, argv, &exit_code);
  if (!flags.ok()) return exit_code;
  recon::InitLog(flags->log_level);
  const recon::MachineLimits limits = recon::ReadMachineLimits();
  recon::LogInfo("this machine: {}", recon::Describe(limits));
  const int workers = std::max(kWorkersExpected, static_cast<int>(flags->job.workers_min()));
  if (const std::string lacks = recon::TooLittle(limits, workers); !lacks.empty())
    recon::LogWarn("{}", lacks);
  const recon::PollerLimit poller_limit;
  return Run(*flags);
}
