#include <algorithm>
#include <iostream>
#include <string>

#include "common/base/clock.h"
#include "common/base/end_guard.h"
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

int ExitCodeOf(const absl::Status& outcome) {
  if (recon::EndedIdle(outcome)) return 3;
  return outcome.ok() ? 0 : absl::IsInvalidArgument(outcome) ? 2 : 1;
}

int Run(const recon::ServerFlags& flags, recon::EndGuard* end) {
  bool said = false;
  const auto ending = [end, &said](const absl::Status& outcome) {
    if (!outcome.ok() && !said)
      std::cerr << "recon-server: " << recon::EscapeControls(outcome.message()) << "\n";
    said = true;
    end->Expect(ExitCodeOf(outcome));
  };
  auto server = recon::ReconServer::Start(flags, ending);
  if (!server.ok()) {
    std::cerr << "recon-server: " << recon::EscapeControls(server.status().message()) << "\n";
    return ExitCodeOf(server.status());
  }
  const absl::Status status = (*server)->RunUntilStopped();
  ending(status);  // Its threads are waited for now.
  return ExitCodeOf(status);
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
  recon::EndGuard end;  // Until the last of the others has ended.
  const recon::PollerLimit poller_limit;
  return Run(*flags, &end);
}
