#include <functional>
#include <iostream>
#include <string>

#include "CLI/CLI.hpp"
#include "tools/reconctl/verbs.h"

namespace {

constexpr char kExitCodes[] =
    "Exit codes:\n"
    "  0  done\n"
    "  1  failed for another reason, as the message says\n"
    "  2  wrong flags or arguments\n"
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

void AddServerFlags(CLI::App* verb, recon::ServerTarget* target) {
  verb->add_option("--server", target->address, "HOST:PORT of recon-server")
      ->envname("RECON_SERVER")
      ->capture_default_str();
  verb->add_option("--tls-cert", target->tls.cert, "PEM certificate of this client")
      ->envname("RECON_TLS_CERT");
  verb->add_option("--tls-key", target->tls.key, "PEM key of the certificate")->envname("RECON_TLS_KEY");
  verb->add_option("--tls-ca", target->tls.ca, "PEM certificate of the CA")->envname("RECON_TLS_CA");
  verb->add_flag("--insecure", target->tls.insecure, "plain text to an address other than loopback")
      ->envname("RECON_INSECURE");
  verb->add_flag("--json", target->json, "one JSON value instead of a table");
}

void AddSnapshotFlags(CLI::App* verb, recon::SnapshotTarget* target, bool generation) {
  verb->add_option("directory", target->directory, "snapshot directory: <data>/snapshots of a server")
      ->required();
  if (generation)
    verb->add_option("generation", target->generation, "number of the snapshot; default see above");
  verb->add_flag("--json", target->json, "one JSON value instead of a table");
}

}  // namespace

int main(int argc, char** argv) {
  CLI::App app{"reconctl: shows a running job; lists and verifies snapshots"};
  app.footer(kExitCodes);
  app.require_subcommand(1);
  recon::ServerTarget server;
  recon::SnapshotTarget snapshots;
  bool follow = false;
  double patience_seconds = 60;
  std::function<absl::Status()> run;

  CLI::App* status =
      app.add_subcommand("status", "members, staleness, rates, progress and the last snapshot");
  AddServerFlags(status, &server);
  status->add_flag("--follow", follow, "progress until the job is finished");
  status
      ->add_option("--patience", patience_seconds,
                   "with --follow: seconds to wait for a server that does not answer")
      ->check(CLI::Range(0.0, 1e6))
      ->capture_default_str();
  status->callback([&] {
    run = [&] { return follow ? recon::FollowStatus(server, patience_seconds) : recon::ShowStatus(server); };
  });

  CLI::App* completions =
      app.add_subcommand("completions", "every completed split: what was processed, by whom, when");
  AddServerFlags(completions, &server);
  completions->callback([&] { run = [&] { return recon::ShowCompletions(server); }; });

  CLI::App* drain = app.add_subcommand("drain", "end the server in good order, with a last snapshot");
  AddServerFlags(drain, &server);
  drain->callback([&] { run = [&] { return recon::DrainServer(server); }; });

  CLI::App* snapshot = app.add_subcommand("snapshot", "list, show, verify and take snapshots");
  snapshot->require_subcommand(1);
  CLI::App* list = snapshot->add_subcommand("list", "the snapshots of a directory, oldest first");
  AddSnapshotFlags(list, &snapshots, false);
  list->callback([&] { run = [&] { return recon::ListSnapshots(snapshots); }; });
  CLI::App* show = snapshot->add_subcommand("show", "one snapshot (default: the newest): tensors and shards");
  AddSnapshotFlags(show, &snapshots, true);
  show->callback([&] { run = [&] { return recon::ShowSnapshot(snapshots); }; });
  CLI::App* verify =
      snapshot->add_subcommand("verify", "read everything back and check it (default: all snapshots)");
  AddSnapshotFlags(verify, &snapshots, true);
  verify->callback([&] { run = [&] { return recon::VerifySnapshots(snapshots); }; });
  CLI::App* take = snapshot->add_subcommand("take", "ask the server for a snapshot now");
  AddServerFlags(take, &server);
  take->callback([&] { run = [&] { return recon::TakeSnapshot(server); }; });

  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    return app.exit(error) == 0 ? 0 : 2;
  }
  const absl::Status result = run();
  if (!result.ok()) std::cerr << "reconctl: " << result.message() << "\n";
  return ExitCode(result);
}
