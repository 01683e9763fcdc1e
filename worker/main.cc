#include <atomic>
#include <iostream>
#include <string>
#include <thread>

#include "common/base/clock.h"
#include "common/base/log.h"
#include "common/base/machine_limits.h"
#include "common/base/plain_text.h"
#include "common/base/process.h"
#include "common/base/shutdown_signal.h"
#include "common/rpc/grpc_log.h"
#include "common/rpc/grpc_tuning.h"
#include "common/rpc/poller_limit.h"
#include "worker/process/worker.h"
#include "worker/process/worker_flags.h"

// Exit codes: 0 job finished or stopped by a signal, 1 failed, 2 wrong flags, or certificates, data or
// a model that do not fit, or another process has taken over its name.
int main(int argc, char** argv) {
  recon::ProcessUptime();
  recon::ShutdownSignal::Install();
  recon::TuneProcess();
  recon::RaiseLimits();
  recon::ExplainMissingThreads();
  recon::TuneGrpc();
  recon::TakeGrpcLog(recon::GrpcLogUse::kClient);
  int exit_code = 0;
  const auto flags = recon::ParseWorkerFlags(argc, argv, &exit_code);
  if (!flags.ok()) return exit_code;
  recon::InitLog(flags->log_level);
  const recon::MachineLimits limits = recon::ReadMachineLimits();
  recon::LogInfo("this machine: {}", recon::Describe(limits));
  if (const std::string lacks = recon::TooLittle(limits, 1); !lacks.empty()) recon::LogWarn("{}", lacks);
  const recon::PollerLimit poller_limit;
  std::atomic<bool> stop{false};
  std::atomic<bool> ended{false};
  std::thread signals([&] {
    while (!ended.load() && !stop.load()) stop.store(recon::ShutdownSignal::Wait(absl::Milliseconds(100)));
    if (stop.load()) recon::LogInfo("{}: ends after what is under way", recon::ShutdownSignal::Name());
  });
  const absl::Status status = recon::RunWorker(*flags, &stop);
  ended.store(true);
  signals.join();
  if (status.ok() || (absl::IsCancelled(status) && stop.load())) return 0;
  std::cerr << "recon-worker: " << recon::EscapeControls(status.message()) << "\n";
  // Who is started again after its name was taken over takes it back, and so on for ever.
  return absl::IsInvalidArgument(status) || absl::IsNotFound(status) || absl::IsDataLoss(status) ||
                 absl::IsAlreadyExists(status)
             ? 2
             : 1;
}
