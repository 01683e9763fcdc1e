#include <iostream>
#include <optional>

#include "common/base/log.h"
#include "common/base/machine_limits.h"
#include "common/base/plain_text.h"
#include "common/cli/command_line.h"
#include "common/rpc/grpc_log.h"
#include "tools/reconctl/verb_flags.h"

namespace {

constexpr char kExitCodes[] =
    "Exit codes:\n"
    "  0  done\n"
    "  1  failed for another reason, as the message says\n"
    "  2  wrong flags or arguments, or certificates that do not fit the server's\n"
    "  3  the server cannot be reached or did not answer in time\n"
    "  4  a snapshot is damaged\n"
    "  5  there is no such snapshot or directory";

int ExitCode(const absl::Status& status) {
  switch (status.code()) {
    case absl::StatusCode::kOk:
      return 0;
    case absl::StatusCode::kInvalidArgument:
      return 2;
    case absl::StatusCode::kUnavailable:
    case absl::StatusCode::kDeadlineExceeded:
      return 3;
    case absl::StatusCode::kDataLoss:
      return 4;
    case absl::StatusCode::kNotFound:
      return 5;
    default:
      return 1;
  }
}

}  // namespace

int main(int argc, char** argv) {
  setenv("RECON_STORE_PATIENCE", "5s", /*overwrite=*/0);  // Somebody sits and waits.
  recon::RaiseLimits();
  recon::TakeGrpcLog(recon::GrpcLogUse::kClient);
  recon::InitLog("warn");  // To standard error: standard output is for what was asked for.
  recon::CommandLine line("reconctl", "shows a running job; lists, verifies, compares and exports snapshots");
  CLI::App& app = *line.app();
  app.footer(kExitCodes);
  app.require_subcommand(1);
  line.BeginGroup("Flags");
  recon::Run run;
  recon::AddJobVerbs(&app, &run);
  recon::AddSnapshotVerbs(&app, &run);
  recon::AddPolicyVerbs(&app, &run);
  if (const std::optional<int> code = line.Parse(argc, argv)) return *code;
  const absl::Status result = run();
  if (!result.ok()) std::cerr << "reconctl: " << recon::EscapeLines(result.message()) << "\n";
  return ExitCode(result);
}
